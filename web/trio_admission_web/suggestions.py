"""What somebody may have meant who wrote a name that means nothing."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from .options import BACKEND, GATEWAY, POOL, PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .options import Option


def suggest(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence about a name, empty if none of those that are known is meant.

    Some settings have one name in the file, another as a flag, and a third as a variable: who writes one of
    them where another belongs means that one, however much else looks alike.
    """
    meant = _ELSEWHERE.get(name)
    close = [meant] if meant in known else get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def suggest_flag_for(value: str, known: Collection[str]) -> str:
    """Return the end of a sentence about a value that no flag stands before, empty if none is likely."""
    is_likely = value.startswith(("http://", "https://")) and _URL in known
    return f"; did you mean {_URL} {value}?" if is_likely else ""


def _elsewhere() -> Iterator[tuple[str, str]]:
    yield "--config", "FILE"  # of `check-config`
    for option in (*GATEWAY, *POOL, *BACKEND):
        for name in _names(option):
            yield name, option.name
            yield "--" + name.replace("_", "-"), option.flag
            yield PREFIX + name.upper(), option.in_environment


def _names(option: Option) -> tuple[str, ...]:
    return option.name, option.argument, option.in_environment.removeprefix(PREFIX).lower()


_URL: Final = next(option.flag for option in BACKEND if option.name == "url")
_ELSEWHERE: Final = dict(_elsewhere())
