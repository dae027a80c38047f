from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from tests.support.gateway import settings_for
from trio_admission import AdmissionConfig
from trio_admission_web.keys import ApiKey
from trio_admission_web.options import BACKEND, GATEWAY, KEY, POOL
from trio_admission_web.settings import BackendSettings, Settings, SettingsError

UPSTREAM = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("record", "options"),
    [(Settings, GATEWAY), (BackendSettings, BACKEND), (AdmissionConfig, POOL), (ApiKey, KEY)],
)
def test_the_tables_and_the_records_agree(record: type, options: tuple[object, ...]) -> None:
    of_record = {field.name: field.default for field in fields(record)}
    for option in options:
        default = of_record.pop(option.name)  # type: ignore[attr-defined]
        if option.otherwise != "must be given":  # type: ignore[attr-defined]
            assert option.default == default  # type: ignore[attr-defined]
    assert of_record.keys() <= {"name", "backends", "keys", "admission", "min_waiting"}


def test_a_backends_key_is_never_shown() -> None:
    assert "sk-secret" not in repr(settings_for(UPSTREAM, api_key="sk-secret"))
    wrongs: list[dict[str, Any]] = [
        {"url": UPSTREAM, "api_key": "sk-secret\n"},
        {"url": "http://user:sk-secret@127.0.0.1"},
    ]
    for wrong in wrongs:
        with pytest.raises(SettingsError) as caught:
            BackendSettings(**wrong)
        assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "127.0.0.1:8080"),
        ("url", "ftp://127.0.0.1"),
        ("url", "http://"),
        ("url", "http://127.0.0.1:99999"),
        ("url", "http://127.0.0.1?x=1"),
        ("url", "http://127.0.0.1:8080/v1/"),
        ("api_key", ""),
        ("slots", 0),
        ("slots", True),
        ("models", "a"),
        ("idle_limit", math.inf),
        ("away_limit", 0),
        ("kv_cache", "shared"),
        ("default_output_tokens", 0),
        ("slot_files_limit", 0),
        ("slot_save_path", ""),
        ("gguf", "default"),
        ("context_per_slot", 512),
    ],
)
def test_a_backends_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        BackendSettings(**{"url": UPSTREAM, field: value})  # type: ignore[arg-type]
    assert caught.value.name == field


@pytest.mark.parametrize(
    "command",
    [
        (),
        "llama-server",
        ("",),
        ("llama-server", 8),
        ("llama-server", "--port", "1"),
        ("x", "--api-key", "k"),
    ],
)
def test_a_command_is_what_the_gateway_can_start_and_ask(command: object) -> None:
    with pytest.raises(SettingsError) as caught:
        BackendSettings(command=command)  # type: ignore[arg-type]
    assert caught.value.name == "command"


def test_a_backend_has_an_address_or_a_command_or_a_model() -> None:
    with pytest.raises(SettingsError, match=r"^url or command or gguf must be given$"):
        BackendSettings()
    assert BackendSettings(command=("llama-server", "")).command == ("llama-server", "")


@pytest.mark.parametrize(
    ("said", "isolated"),
    [
        ({"url": UPSTREAM}, None),
        ({"url": UPSTREAM, "kv_cache": "isolated"}, True),
        ({"url": UPSTREAM, "kv_cache": "unified"}, False),
        ({"url": UPSTREAM, "kv_tokens": 1000}, False),
        ({"command": ("llama-server",)}, False),
        ({"command": ("llama-server", "-np", "4")}, True),
        ({"command": ("llama-server", "--parallel", "4", "-kvu")}, False),
        ({"command": ("llama-server", "--parallel", "-1")}, False),
        ({"command": ("llama-server", "--no-kv-unified")}, True),
        ({"command": ("llama-server",), "kv_cache": "isolated"}, True),
        ({"gguf": "default"}, True),
    ],
)
def test_whether_slots_are_isolated_is_what_was_said_or_what_a_command_says(
    said: dict[str, Any], isolated: bool | None
) -> None:
    assert BackendSettings(**said).has_isolated_slots is isolated


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("host", "0.0.0.0"),
        ("host", "gateway.example"),
        ("port", 65536),
        ("max_body", 0),
        ("grace", -1.0),
        ("stall_deadline", math.nan),
        ("backends", ()),
        ("backends", (BackendSettings(url=UPSTREAM),) * 2),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_for(UPSTREAM, **{field: value})
    assert caught.value.name == field


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_without_keys_this_machine_alone_may_be_served(host: str) -> None:
    assert settings_for(UPSTREAM, host=host).host == host


def test_others_may_be_served_with_keys_or_on_the_operators_word() -> None:
    key = ApiKey(name="ada", hash="sha256:" + "0" * 64)
    assert settings_for(UPSTREAM, host="0.0.0.0", keys=(key,)).keys == (key,)
    assert settings_for(UPSTREAM, host="0.0.0.0", insecure=True).insecure


def test_tls_takes_both_files() -> None:
    assert settings_for(UPSTREAM, tls_cert="c", tls_key="k").tls == ("c", "k")
    assert settings_for(UPSTREAM).tls is None
    for half in ("tls_cert", "tls_key"):
        with pytest.raises(SettingsError, match=r"^tls_cert and tls_key must be given together$"):
            settings_for(UPSTREAM, **{half: "x"})
