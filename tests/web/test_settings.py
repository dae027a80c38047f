from __future__ import annotations

import math

import pytest

from trio_admission import AdmissionConfig
from trio_admission_web.settings import Settings, SettingsError

UPSTREAM = "http://127.0.0.1:8080"


def test_only_the_upstream_must_be_said() -> None:
    settings = Settings.from_env({}, upstream=UPSTREAM)
    assert settings == Settings(upstream=UPSTREAM)
    with pytest.raises(SettingsError, match="upstream: is missing"):
        Settings.from_env({})


def test_each_field_can_come_from_the_environment_and_flags_win() -> None:
    environ = {
        "TRIO_ADMISSION_UPSTREAM": "https://gpu.example/llama",
        "TRIO_ADMISSION_UPSTREAM_API_KEY": "sk-1",
        "TRIO_ADMISSION_PORT": " 9000 ",
        "TRIO_ADMISSION_SLOTS": "4",
        "TRIO_ADMISSION_IDLE_LIMIT": "7.5",
        "TRIO_ADMISSION_HOST": "  ",
        "TRIO_ADMISSION_QUEUE_TIMEOUT": "30",
    }
    settings = Settings.from_env(environ, port=9001)
    assert settings == Settings(
        upstream="https://gpu.example/llama",
        upstream_api_key="sk-1",
        port=9001,
        slots=4,
        idle_limit=7.5,
        admission=AdmissionConfig(max_wait=30.0),
    )


def test_the_key_is_never_shown() -> None:
    settings = Settings(upstream=UPSTREAM, upstream_api_key="sk-secret")
    assert "sk-secret" not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        Settings(upstream=UPSTREAM, upstream_api_key="sk-secret\n")
    assert "sk-secret" not in str(caught.value)
    with pytest.raises(SettingsError) as caught:
        Settings(upstream="http://user:sk-secret@127.0.0.1:8080")
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("upstream", "127.0.0.1:8080"),
        ("upstream", "ftp://127.0.0.1"),
        ("upstream", "http://"),
        ("upstream", "http://127.0.0.1:99999"),
        ("upstream", "http://127.0.0.1?x=1"),
        ("upstream_api_key", ""),
        ("host", ""),
        ("port", 65536),
        ("slots", 0),
        ("max_body", 0),
        ("grace", -1.0),
        ("stall_deadline", math.nan),
        ("idle_limit", math.inf),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**{"upstream": UPSTREAM, field: value})  # type: ignore[arg-type]
    assert caught.value.name == field


def test_a_value_that_does_not_parse_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="slots: must be a number, not 'four'"):
        Settings.from_env({"TRIO_ADMISSION_UPSTREAM": UPSTREAM, "TRIO_ADMISSION_SLOTS": "four"})
