"""File, environment and flags: one precedence, and every mistake said at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trio_admission import AdmissionConfig
from trio_admission_web.configuration import ConfigurationError, load
from trio_admission_web.keys import ApiKey
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

UPSTREAM = "http://127.0.0.1:8080"
HASH = "sha256:" + "a" * 64
FILE = f"""\
port = 9000
max_wait = 20
waiting_per_slot = 3

[backends.small]
url = "http://127.0.0.1:8081"
models = ["small"]
aliases = ["tiny"]

[backends.default]
url = "{UPSTREAM}"
slots = 2

[keys.ada]
hash = "{HASH}"
weight = 2
models = ["small"]
"""


def read(
    tmp_path: Path,
    text: str,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    return load(file, environ=environ or {}, flags=flags)


def mistakes(
    tmp_path: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text, environ, flags)
    return [each.replace(f"{tmp_path}/", "") for each in caught.value.mistakes]


def test_an_address_is_enough() -> None:
    settings = Settings(backends=(BackendSettings(url=UPSTREAM),))
    assert load(environ={"TRIO_ADMISSION_UPSTREAM": UPSTREAM}) == settings
    assert load(environ={}, flags={"upstream": UPSTREAM}) == settings


def test_a_file_says_everything(tmp_path: Path) -> None:
    assert read(tmp_path, FILE) == Settings(
        port=9000,
        admission=AdmissionConfig(max_wait=20, waiting_per_slot=3, min_waiting=None),
        backends=(
            BackendSettings(name="small", url="http://127.0.0.1:8081", models=("small",), aliases=("tiny",)),
            BackendSettings(name="default", url=UPSTREAM, slots=2),
        ),
        keys=(ApiKey(name="ada", hash=HASH, weight=2, models=frozenset({"small"})),),
    )


def test_a_variable_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(FILE)
    assert load(environ={"TRIO_ADMISSION_CONFIG": f" {tmp_path / 'x.toml'} "}).port == 9000


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    environ = {
        "TRIO_ADMISSION_PORT": " 9001 ",
        "TRIO_ADMISSION_SLOTS": "3",
        "TRIO_ADMISSION_QUEUE_TIMEOUT": "30",
        "TRIO_ADMISSION_HOST": "  ",
    }
    settings = read(tmp_path, FILE, environ)
    assert (settings.port, settings.backends[1].slots, settings.admission.max_wait) == (9001, 3, 30)
    assert settings.host == "127.0.0.1"
    flags = {"port": "9002", "slots": "4", "max_wait": "0", "models": "a, b"}
    settings = read(tmp_path, FILE, environ, flags)
    assert (settings.port, settings.backends[1].slots, settings.admission.max_wait) == (9002, 4, 0)
    assert settings.backends[1].models == ("a", "b")
    assert settings.backends[0].models == ("small",)


@pytest.mark.parametrize(
    ("environ", "per_slot", "floor"),
    [
        ({"UNSLOTH_LLAMA_ADMISSION_QUEUE_PER_SLOT": "5"}, 5, None),
        ({"TRIO_ADMISSION_QUEUE_PER_SLOT": "16"}, 16, None),
        ({"UNSLOTH_OPENAI_COMPAT_ADMISSION_QUEUE_PER_SLOT": "5"}, 16, 64),
    ],
)
def test_the_lines_variables_have_the_librarys_other_names(
    environ: dict[str, str], per_slot: int, floor: int | None
) -> None:
    admission = load(environ={**environ, "TRIO_ADMISSION_UPSTREAM": UPSTREAM}).admission
    assert (admission.waiting_per_slot, admission.min_waiting) == (per_slot, floor)


def test_a_variable_that_the_library_does_not_understand_is_a_warning_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = read(tmp_path, FILE, {"TRIO_ADMISSION_QUEUE_PER_SLOT": "x"})
    assert caplog.messages == ["TRIO_ADMISSION_QUEUE_PER_SLOT='x' means nothing; the default is used"]
    assert (settings.admission.waiting_per_slot, settings.admission.min_waiting) == (16, 64)


def test_all_mistakes_are_said_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = """\
prot = 1
grace = -1   # a comment
insecure = "yes"
[backends.a]
url = "http://user:SECRET@h"
slot = 3
[backends.b]
slots = 0
models = "x"
[keys.one]
hash = "SECRET-itself"
weight = 0
[keys.two]
flow = ""
"""
    environ = {"TRIO_ADMISSION_SLOTS": "four", "TRIO_ADMISSION_UPSTREM": "x"}
    said = mistakes(tmp_path, text, environ, {"port": "70000", "upstream": UPSTREAM})
    names = 'a list of names, such as ["a", "b"] (a variable or a flag: a,b)'
    assert sorted(said) == sorted([
        "gateway.toml:1: prot is not a setting; did you mean port?",
        "gateway.toml:2: grace must be a number of seconds above 0, not -1",
        "gateway.toml:3: insecure must be on or off (in the file: true or false), not 'yes'",
        (
            "gateway.toml:5: backends.a.url must be an address such as http://127.0.0.1:8080,"
            " without /v1, user, password, query and fragment"
        ),
        "gateway.toml:6: backends.a.slot is not a setting; did you mean slots?",
        "gateway.toml:7: backends.b: url or command or gguf must be given",
        "gateway.toml:8: backends.b.slots must be a whole number, at least 1, not 0",
        f"gateway.toml:9: backends.b.models must be {names}, not 'x'",
        (
            "gateway.toml:11: keys.one.hash must be 'sha256:' and 64 hexadecimal digits,"
            " as `trio-admission new-key` prints it"
        ),
        "gateway.toml:12: keys.one.weight must be a number above 0, not 0",
        "gateway.toml:13: keys.two: hash is missing",
        "gateway.toml:14: keys.two.flow must be text that is not empty, not ''",
        "TRIO_ADMISSION_SLOTS must be a whole number, at least 1, not 'four'",
        "TRIO_ADMISSION_UPSTREM is no variable of the gateway; did you mean TRIO_ADMISSION_UPSTREAM?",
        "--port must be a whole number from 0 to 65535, not 70000",
    ])


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("port = ", "gateway.toml is not TOML: Invalid value (at end of document)"),
        ("port = 1\nport = 2", "gateway.toml is not TOML: Cannot overwrite a value (at end of document)"),
        ("backends = 3", "gateway.toml:1: backends must be made of tables [backends.NAME]"),
        ("keys = {a = 1}", "gateway.toml:1: keys must be made of tables [keys.NAME]"),
        (
            f'keys.one = {{ hash = "{HASH}" }}\nkeys.two.hash = "{HASH}"',
            "gateway.toml:2: keys.two.hash must not be that of another key, 'one'",
        ),
        (
            'host = "0.0.0.0"',
            "gateway.toml:1: host can be reached by others, so keys must be configured (or say --insecure)",
        ),
        ('tls_cert = "c"\n[backends.a]\nurl = "http://h"\n', "tls_cert and tls_key must be given together"),
        ("backends.gpu.slots = 3", "[backends.gpu]: url or command or gguf must be given"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, mistake: str) -> None:
    found = mistakes(tmp_path, text, {"TRIO_ADMISSION_UPSTREAM": UPSTREAM})
    assert [each.replace("gateway.toml: backends.gpu", "[backends.gpu]") for each in found] == [mistake]


def test_a_backend_may_be_a_command_or_a_model_instead_of_an_address(tmp_path: Path) -> None:
    text = """\
[backends.own]
command = ["llama-server", "-m", "a model.gguf"]
kv_cache = "isolated"
[backends.tiny]
gguf = "default"
slots = 2
context_per_slot = 512
"""
    own = BackendSettings(name="own", command=("llama-server", "-m", "a model.gguf"), kv_cache="isolated")
    tiny = BackendSettings(name="tiny", gguf="default", slots=2, context_per_slot=512)
    assert read(tmp_path, text).backends == (own, tiny)
    line = "llama-server -m 'a model.gguf' -np 2"
    [backend] = load(environ={"TRIO_ADMISSION_COMMAND": line}).backends
    assert backend.command == ("llama-server", "-m", "a model.gguf", "-np", "2")
    assert load(environ={}, flags={"gguf": "m.gguf"}).backends == (BackendSettings(gguf="m.gguf"),)


def test_another_kind_of_backend_wins_too(tmp_path: Path) -> None:
    by_variable = read(tmp_path, FILE, {"TRIO_ADMISSION_COMMAND": "llama-server"})
    by_flag = read(tmp_path, FILE, {"TRIO_ADMISSION_COMMAND": "llama-server"}, {"gguf": "default"})
    told = [(each.url, each.command, each.gguf) for each in (by_variable.backends[1], by_flag.backends[1])]
    assert told == [(None, ("llama-server",), None), (None, None, "default")]


def test_settings_of_a_backend_that_do_not_go_together_are_all_said(tmp_path: Path) -> None:
    text = """\
[backends.a]
url = "http://h"
gguf = "default"
command = ["llama-server", "--port", "1"]
[backends.b]
url = "http://h"
kv_cache = "isolated"
kv_tokens = 1000
context_per_slot = 512
[backends.c]
gguf = "default"
kv_cache = "unified"
api_key = "SECRET"
"""
    command = (
        'a list of strings, such as ["llama-server", "-m", "model.gguf"] (a variable or a flag: one line,'
        " quoted as for a shell), without --host, --port and --api-key, which are the gateway's to say"
    )
    assert mistakes(
        tmp_path, text, {"TRIO_ADMISSION_COMMAND": "'"}, {"kv_tokens": "9", "kv_cache": "isolated"}
    ) == [
        f"gateway.toml:4: backends.a.command must be {command}",
        f"TRIO_ADMISSION_COMMAND must be {command}",
        "gateway.toml:4: backends.a.command must not be given together with url",
        "gateway.toml:3: backends.a.gguf must not be given together with url",
        "gateway.toml:8: backends.b.kv_tokens is of a unified KV cache, and this one is isolated",
        "gateway.toml:9: backends.b.context_per_slot is for gguf",
        "gateway.toml:12: backends.c.kv_cache must be isolated, or left out, with gguf",
        (
            "gateway.toml:13: backends.c.api_key is for url;"
            " the gateway makes a key for a server that it starts"
        ),
        "--kv-tokens is of a unified KV cache, and this one is isolated",
    ]


def test_what_is_said_of_no_backend_needs_its_address(tmp_path: Path) -> None:
    assert mistakes(tmp_path, environ={"TRIO_ADMISSION_SLOTS": "3"}) == [
        "[backends.default]: url or command or gguf must be given (--upstream, --command or --gguf)"
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        load(tmp_path / "none.toml", environ={})


@pytest.mark.parametrize("name", ["TRIO_ADMISSION_UPSTREAM_API_KEY", "TRIO_ADMISSION_IDLE_LIMIT"])
def test_a_wrong_variable_makes_no_backend_that_lacks_an_address(tmp_path: Path, name: str) -> None:
    [said] = mistakes(tmp_path, f'[backends.a]\nurl = "{UPSTREAM}"', {name: "é"})
    assert said.startswith(f"{name} must be ")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TRIO_ADMISSION_MAX_WAIT", "TRIO_ADMISSION_QUEUE_TIMEOUT"),
        ("TRIO_ADMISSION_MAX_WAITING", "TRIO_ADMISSION_MAX_QUEUE"),
        ("TRIO_ADMISSION_URL", "TRIO_ADMISSION_UPSTREAM"),
    ],
)
def test_the_name_that_a_setting_has_elsewhere_leads_to_the_one_here(
    tmp_path: Path, name: str, meant: str
) -> None:
    assert mistakes(tmp_path, FILE, {name: "3"}) == [
        f"{name} is no variable of the gateway; did you mean {meant}?"
    ]


def test_the_name_of_a_flag_leads_to_the_one_in_the_file(tmp_path: Path) -> None:
    text = f'queue_timeout = 3\n[backends.a]\nupstream = "{UPSTREAM}"\n'
    assert mistakes(tmp_path, text)[:2] == [
        "gateway.toml:3: backends.a.upstream is not a setting; did you mean url?",
        "gateway.toml:1: queue_timeout is not a setting; did you mean max_wait?",
    ]


def test_a_key_for_a_model_that_no_backend_serves_is_a_mistake(tmp_path: Path) -> None:
    backends = """\
[backends.a]
url = "http://h"
models = ["small"]
aliases = ["tiny"]
"""
    key = f'[keys.ada]\nhash = "{HASH}"\nmodels = ["small", "tiny", "smal", "x"]\n'
    assert mistakes(tmp_path, backends + key) == [
        "gateway.toml:7: keys.ada.models: no backend serves smal; did you mean small?",
        "gateway.toml:7: keys.ada.models: no backend serves x",
    ]
    read(tmp_path, f'{backends}[backends.b]\nurl = "{UPSTREAM}"\n{key}')  # which takes every name
