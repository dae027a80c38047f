"""Makes docs/reference/configuration.md: ``python -m tests.support.configuration_reference``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trio_admission_web.configuration import CONFIG
from trio_admission_web.options import BACKEND, GATEWAY, KEY, POOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio_admission_web.options import Option

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"

_ABOUT: Final = f"""\
# Configuration

<!-- Made from the code by tests/support/configuration_reference.py; a test compares. -->

The gateway is configured by a TOML file, by environment variables and by flags of `trio-admission serve`.
**A flag wins over a variable, and a variable over the file.** The file is the one that `--config FILE` or
`{CONFIG}` names; without either there is none. Blank variables count as absent.
`hypercorn -k trio trio_admission_web.asgi:app` reads file and variables, and listens where Hypercorn is told
to.

Everything that is wrong is said at once, each with file and line, variable or flag, and with what is allowed;
names that mean nothing are errors, variables that begin with `TRIO_ADMISSION_` included.
`trio-admission check-config [FILE]` says it without starting a server, and `serve` before it does. Both look
for what the settings name, too: programs, models, directories, TLS files and tools, whose modules are
imported for that, so their code runs; an MCP server is first asked when the gateway runs.
[example.toml](../example.toml) shows every setting.

`trio-admission demo` reads no file. What its flags do not say it takes from `TRIO_ADMISSION_SLOTS` and from
the variables of the gateway and of the line, without those of TLS and unix sockets, which it does not have.

SIGHUP makes `serve` read all of it again. Keys and the gateway's limits change at once, for requests that
come from then on; nobody in the line or in the middle of an answer notices. What takes a restart is named
in the log and stays as it was. A file with a mistake changes nothing; what it names is not looked for again.
"""
_GATEWAY: Final = """\
At the top of the file. Without keys, `host` must be this machine's own (127.0.0.1, ::1, localhost), unless
`insecure` says otherwise; behind Hypercorn's own command, requests that came in by another address are
refused. Sockets that systemd hands over take the place of `host`, `port` and `unix`; see
[deployment](../how-to/deploy.md).
"""
_LINE: Final = """\
At the top of the file, for the line in front of each backend. Variables that `AdmissionConfig.from_env` of
the library reads have its other prefixes too, and one that does not parse is a warning in the log: the
default stands.
"""
_BACKENDS: Final = """\
In a table `[backends.NAME]` for each backend; the first is the default one. Variables and flags are about the
backend named `default`, which `--upstream` alone makes. A request goes to the backends that serve the model
it names, and of these to the one with the shortest estimated wait.

A backend has exactly one of `url`, `command` and `gguf`: a llama-server that runs somewhere, one that the
gateway starts, watches and stops, or the embedded engine with a model file. For the backend `default`, one
that is said by a flag replaces another that is said by a variable, and that one another in the file.
"""
_KEYS: Final = """\
In a table `[keys.NAME]` for each API key, in the file alone. See
[keys and shares](../how-to/keys-and-shares.md).
"""


def page() -> str:
    """Return the page's text."""
    return "\n".join([
        _ABOUT,
        _section("The gateway", _GATEWAY, GATEWAY),
        _section("The line", _LINE, POOL),
        _section("Backends", _BACKENDS, BACKEND),
        _section("Keys", _KEYS, KEY),
    ])


def _section(title: str, about: str, options: Iterable[Option]) -> str:
    return f"## {title}\n\n{about}\n" + "\n".join(_entry(option) for option in options)


def _entry(option: Option) -> str:
    unit = f" {option.unit}" if option.unit and not option.otherwise else ""
    facts = [f"default: {option.default_in_words}{unit}", f"must be {option.kind.allowed}"]
    if option not in KEY:
        facts += [f"variable `{option.in_environment}`, flag `{option.flag}`"]
    return f"**`{option.name}`** - {option.about}.\n\n" + "".join(f"* {fact}\n" for fact in facts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
