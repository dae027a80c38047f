"""What settings name and is not there is said at once, with everything else that is wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trio_admission_web.configuration import ConfigurationError, load

if TYPE_CHECKING:
    from pathlib import Path


def mistakes(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    try:
        load(file, environ={}, look=True)
    except ConfigurationError as error:
        return [each.replace(f"{tmp_path}/", "") for each in error.mistakes]
    return []


def test_all_of_it_is_said_together_each_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    assert mistakes(
        tmp_path,
        f"""\
port = "x"
tools = ["nope:nope", "calendar:day_abbr", "mcp '"]
unix = "/nope/socket"
tls_cert = "/nope.pem"
tls_key = "{tmp_path}"
[backends.a]
gguf = "/nope.gguf"
[backends.b]
command = ["nosuchprogram"]
[backends.c]
gguf = "{tmp_path}/text.gguf"
slot_save_path = "{tmp_path}/text.gguf"
[backends.d]
url = "http://h"
slot_save_path = "/nope"
""",
    ) == [
        "gateway.toml:1: port must be a whole number from 0 to 65535, not 'x'",
        "gateway.toml:2: tools: the tool 'nope:nope' cannot be loaded: No module named 'nope'",
        "gateway.toml:2: tools: 'calendar:day_abbr' is not a tool: decorate the function with @tool",
        'gateway.toml:2: tools: "mcp \'" cannot be run: No closing quotation',
        "gateway.toml:3: unix: there is no directory /nope",
        "gateway.toml:4: tls_cert: /nope.pem cannot be read: No such file or directory",
        f"gateway.toml:5: tls_key: {tmp_path} cannot be read: Is a directory",
        "gateway.toml:7: backends.a.gguf: there is no model file /nope.gguf",
        "gateway.toml:9: backends.b.command: there is no program nosuchprogram to run",
        "gateway.toml:11: backends.c.gguf: text.gguf is no model: it does not begin with GGUF",
        "gateway.toml:12: backends.c.slot_save_path: there is no directory text.gguf",
        "gateway.toml:15: backends.d.slot_save_path: there is no directory /nope",
    ]


def test_files_that_are_no_certificate_and_key_are_found_out(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.write_text("nothing of the kind")
    [said] = mistakes(tmp_path, f'tls_cert = "{file}"\ntls_key = "{file}"\nbackends.a.url = "http://h"')
    assert said.startswith("gateway.toml:1: tls_cert: cannot use pem and pem for TLS: ")


def test_what_is_there_is_good(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03")
    text = f"""\
tools = ["trio_admission_web.tools.builtin:calculate", "mcp http://127.0.0.1:1/mcp"]
[backends.a]
command = ["{sys.executable}", "-m", "llama"]
slot_save_path = "{tmp_path}"
[backends.b]
gguf = "{tmp_path}/m.gguf"
slot_save_path = "{tmp_path}/made/at/the/start"
"""
    assert mistakes(tmp_path, text) == []


def test_reading_again_does_not_look(tmp_path: Path) -> None:
    """A model that is gone must not keep a key from being taken back."""
    file = tmp_path / "gateway.toml"
    file.write_text('tools = ["nope:nope"]\nbackends.a.gguf = "/nope.gguf"\n')
    assert load(file, environ={}).backends[0].gguf == "/nope.gguf"
    with pytest.raises(ConfigurationError):
        load(file, environ={}, look=True)
