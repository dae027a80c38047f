"""The settings, and how they are read from the environment."""

from __future__ import annotations

import warnings

import pytest

from trio_admission import AdmissionConfig

PREFIXES = ("TRIO_ADMISSION_", "UNSLOTH_LLAMA_ADMISSION_", "UNSLOTH_OPENAI_COMPAT_ADMISSION_")
SETTINGS = ("CONTROL", "QUEUE_TIMEOUT", "KEEPALIVE_INTERVAL", "MAX_QUEUE", "QUEUE_PER_SLOT", "KV_BUDGET")

# setting -> the field, a value that is not the default, what it means, and the default
EXAMPLES: dict[str, tuple[str, str, object, object]] = {
    "CONTROL": ("enabled", "off", False, True),
    "QUEUE_TIMEOUT": ("max_wait", "2.5", 2.5, None),
    "KEEPALIVE_INTERVAL": ("keepalive_interval", "0.25", 0.25, 5.0),
    "MAX_QUEUE": ("max_waiting", "7", 7, None),
    "QUEUE_PER_SLOT": ("waiting_per_slot", "3", 3, 16),
    "KV_BUDGET": ("kv_budget", "off", False, True),
}

# every variable that there is; the last prefix never had two of them
VARIABLES = [
    (prefix, setting)
    for prefix in PREFIXES
    for setting in SETTINGS
    if (prefix, setting) not in {(PREFIXES[2], "QUEUE_PER_SLOT"), (PREFIXES[2], "KV_BUDGET")}
]


def field(setting: str, environ: dict[str, str]) -> object:
    return getattr(AdmissionConfig.from_env(environ), EXAMPLES[setting][0])


def test_the_defaults() -> None:
    """C1: on, no timeout, 5.0 s, none, 16, on; an empty environment says the same."""
    config = AdmissionConfig.from_env({})
    assert config == AdmissionConfig()
    for name, _, _, default in EXAMPLES.values():
        assert getattr(config, name) == default


@pytest.mark.parametrize(("prefix", "setting"), VARIABLES)
def test_every_variable_is_read(prefix: str, setting: str) -> None:
    """C1: under each of its names."""
    _, text, meaning, _ = EXAMPLES[setting]
    assert field(setting, {prefix + setting: text}) == meaning
    assert field(setting, {prefix + setting: f"  {text}\t"}) == meaning


@pytest.mark.parametrize("setting", ["QUEUE_PER_SLOT", "KV_BUDGET"])
def test_what_the_last_prefix_never_had_is_not_read(setting: str) -> None:
    """C1: two of the six."""
    _, text, _, default = EXAMPLES[setting]
    assert field(setting, {PREFIXES[2] + setting: text}) == default


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_first_name_that_is_not_blank_wins(setting: str) -> None:
    """C1: ours, then the two older ones; a blank one is as good as none."""
    _, text, meaning, default = EXAMPLES[setting]
    other = {"CONTROL": "on", "KV_BUDGET": "on"}.get(setting, "11")
    ours, older, oldest = (prefix + setting for prefix in PREFIXES)
    assert field(setting, {ours: text, older: other, oldest: other}) == meaning
    for blank in ("", "  ", "\t\n"):
        assert field(setting, {ours: blank, older: text, oldest: other}) == meaning
        if (PREFIXES[2], setting) in VARIABLES:
            assert field(setting, {ours: blank, older: blank, oldest: text}) == meaning
        assert field(setting, {ours: blank, older: blank, oldest: blank}) == default


@pytest.mark.parametrize("text", ["0", "-1", "-0.5", "0.0"])
def test_a_timeout_of_0_or_less_is_none(text: str) -> None:
    """C1: unlike the argument, where 0 means now or never."""
    assert field("QUEUE_TIMEOUT", {"TRIO_ADMISSION_QUEUE_TIMEOUT": text}) is None


@pytest.mark.parametrize("text", ["0", "-3"])
def test_a_keepalive_of_0_or_less_is_the_default(text: str) -> None:
    """C1: somebody who waits always gets a sign of life."""
    assert field("KEEPALIVE_INTERVAL", {"TRIO_ADMISSION_KEEPALIVE_INTERVAL": text}) == 5.0


@pytest.mark.parametrize("text", ["0", "-1"])
def test_a_max_queue_of_0_or_less_is_no_limit(text: str) -> None:
    """C1, L2: an explicit limit wins over the depth for each slot."""
    config = AdmissionConfig.from_env({
        "TRIO_ADMISSION_MAX_QUEUE": text,
        "TRIO_ADMISSION_QUEUE_PER_SLOT": "3",
    })
    assert config.line_limit(4) is None


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        *((setting, text) for setting in SETTINGS for text in ("nan", "inf", "-inf", "many", "1,5", "\x00")),
        ("MAX_QUEUE", "1.5"),
        ("QUEUE_PER_SLOT", "2.0"),
        ("QUEUE_PER_SLOT", "0"),
        ("QUEUE_PER_SLOT", "-16"),
        ("CONTROL", "maybe"),
        ("CONTROL", "2"),
        ("KV_BUDGET", "none"),
    ],
)
def test_what_does_not_parse_is_reported_and_the_default_stands(setting: str, text: str) -> None:
    """C1: the warning names the variable; the next name in line is not asked instead."""
    _, other, _, default = EXAMPLES[setting]
    name = PREFIXES[1] + setting
    with pytest.warns(UserWarning, match=name) as told:
        assert (
            field(setting, {PREFIXES[0] + setting: " ", name: text, PREFIXES[2] + setting: other}) == default
        )
    assert len(told) == 1
    assert told[0].filename == __file__, "the warning should point at who asked for the settings"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [(word, True) for word in ("1", "true", "TRUE", "Yes", "on", "ON")]
    + [(word, False) for word in ("0", "false", "False", "NO", "off", "Off")],
)
def test_words_for_on_and_off(text: str, meaning: bool) -> None:
    """C1: the usual ones, in any case."""
    assert field("CONTROL", {"TRIO_ADMISSION_CONTROL": text}) is meaning
    assert field("KV_BUDGET", {"TRIO_ADMISSION_KV_BUDGET": text}) is meaning


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: once, so that a change afterwards changes nothing."""
    monkeypatch.setenv("TRIO_ADMISSION_MAX_QUEUE", "5")
    config = AdmissionConfig.from_env()
    monkeypatch.setenv("TRIO_ADMISSION_MAX_QUEUE", "6")
    assert config.max_waiting == 5


def test_good_settings_warn_of_nothing() -> None:
    """C1: all of them together."""
    environ = {prefix + setting: EXAMPLES[setting][1] for prefix, setting in VARIABLES}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = AdmissionConfig.from_env(environ)
    assert {name: getattr(config, name) for name, *_ in EXAMPLES.values()} == {
        name: meaning for name, _, meaning, _ in EXAMPLES.values()
    }


# The limit of the line


@pytest.mark.parametrize(
    ("config", "slots", "limit"),
    [
        (AdmissionConfig(), 1, 64),
        (AdmissionConfig(), 4, 64),
        (AdmissionConfig(), 5, 80),
        (AdmissionConfig(), 100, 1600),
        (AdmissionConfig(max_waiting=3), 100, 3),
        (AdmissionConfig(max_waiting=1), 1, 1),
        (AdmissionConfig(max_waiting=0), 4, None),
        (AdmissionConfig(max_waiting=-1), 4, None),
        (AdmissionConfig(waiting_per_slot=2), 4, 64),
        (AdmissionConfig(waiting_per_slot=2), 40, 80),
        (AdmissionConfig(waiting_per_slot=2, min_waiting=None), 4, 8),
        (AdmissionConfig(waiting_per_slot=2, min_waiting=10), 4, 10),
        (AdmissionConfig(max_waiting=3, min_waiting=64), 4, 3),
    ],
)
def test_the_limit_of_the_line(config: AdmissionConfig, slots: int, limit: int | None) -> None:
    """L2: an explicit limit wins; else the product, with its floor."""
    assert config.line_limit(slots) == limit


def test_an_operators_own_depth_has_no_floor() -> None:
    """L2: but one that does not parse leaves the default, with its floor."""
    assert AdmissionConfig.from_env({"TRIO_ADMISSION_QUEUE_PER_SLOT": "2"}).line_limit(4) == 8
    assert AdmissionConfig.from_env({"UNSLOTH_LLAMA_ADMISSION_QUEUE_PER_SLOT": "16"}).line_limit(1) == 16
    with pytest.warns(UserWarning, match="QUEUE_PER_SLOT"):
        config = AdmissionConfig.from_env({"TRIO_ADMISSION_QUEUE_PER_SLOT": "two"})
    assert config.line_limit(1) == 64
    assert AdmissionConfig.from_env({}).line_limit(1) == 64


# Mistakes


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_wait": -1},
        {"max_wait": float("nan")},
        {"keepalive_interval": 0},
        {"keepalive_interval": float("inf")},
        {"keepalive_interval": float("nan")},
        {"waiting_per_slot": 0},
        {"max_waiting_per_flow": -1},
        {"aging": 0},
        {"aging": -5},
        {"aging": float("inf")},
        {"aging": float("nan")},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    """C1: validated once, where they are made, with the name of the field."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdmissionConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": "off"},
        {"kv_budget": None},
        {"max_wait": "30"},
        {"max_waiting": float("nan")},
        {"waiting_per_slot": 1.5},
        {"waiting_per_slot": None},
        {"min_waiting": "64"},
        {"max_waiting_per_flow": [1]},
        {"keepalive_interval": None},
        {"aging": "10"},
    ],
)
def test_settings_of_a_wrong_kind_are_refused(wrong: dict[str, object]) -> None:
    """C1: what reads like off must not be on."""
    with pytest.raises(TypeError, match=f"^{next(iter(wrong))} must be "):
        AdmissionConfig(**wrong)  # type: ignore[arg-type]


def test_settings_do_not_change() -> None:
    """C1: a pool may be handed the same record as another."""
    config = AdmissionConfig()
    with pytest.raises(AttributeError):
        config.max_wait = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        AdmissionConfig(True)  # type: ignore[call-arg]
