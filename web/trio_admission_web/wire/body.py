"""Request bodies: strict where gateway and backend could read two different things, lax everywhere else."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from trio_admission_web.problems import ProblemError, invalid_request

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 128
"""Levels of nesting that a body may have; the backend recurses over them, and too many can end it."""

MAX_VALUES = 1_000_000
"""Values that a body may have. Nothing else runs while they are read, which takes about a second."""


def read_object(raw: bytes) -> dict[str, Any]:
    """Read a body that must be one JSON object.

    Raises:
        ProblemError: `invalid_request`, for anything else, and for what JSON readers do not agree on: no
            UTF-8, NaN or Infinity, a name that stands twice in one object, more than `MAX_DEPTH` levels;
            also for more than `MAX_VALUES` commas and opening brackets, those in texts included.
    """
    # Without reading it: whatever is not the first in its list or object has a comma before it.
    if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        _refuse(_TOO_MANY)
    try:
        value = _decoder.decode(raw.decode())
    except UnicodeDecodeError:
        _refuse("The body is not UTF-8.")
    except json.JSONDecodeError as error:
        _refuse(f"The body is not JSON: {error.msg} at character {error.pos}.")
    except RecursionError:
        _refuse(_TOO_DEEP)
    except ValueError:  # a number of more digits than Python converts
        _refuse("The body has a number that is too long.")
    if not isinstance(value, dict):
        _refuse("The body is not a JSON object.")
    if _deeper_than(MAX_DEPTH, value):
        _refuse(_TOO_DEEP)
    return value


def read_text(body: Mapping[str, Any], name: str) -> str | None:
    """A field that is text or null."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or _has_lone_surrogate(value):
        _refuse(f"'{name}' must be text.", name)
    return value


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """A field that is true, false or null, which means false."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        _refuse(f"'{name}' must be true or false.", name)
    return value


def read_integer(body: Mapping[str, Any], name: str) -> int | None:
    """A field that is a number or null; a fraction is dropped, as llama-server drops it."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(f"'{name}' must be a whole number.", name)
    if not -_TOO_LARGE < value < _TOO_LARGE:
        _refuse(f"'{name}' is too large.", name)
    return int(value)


def read_count(body: Mapping[str, Any], name: str) -> int:
    """A field that is a whole number of at least 1, or null, which means 1."""
    value = read_integer(body, name)
    if value is None:
        return 1
    if value < 1:
        _refuse(f"'{name}' must be at least 1.", name)
    return value


def read_limit(body: Mapping[str, Any], *names: str) -> int | None:
    """The output limit in tokens, under any of its names; None for no limit."""
    limits = [limit for name in names if (limit := read_integer(body, name)) is not None]
    # Which of several wins is the server's secret, so the largest counts; -1 means "no limit" to it.
    return None if not limits or min(limits) < 0 else max(limits)


def read_choices(body: Mapping[str, Any]) -> int:
    """How many answers llama-server is asked for to one prompt."""
    return read_count(body, "n" if body.get("n_cmpl") is None else "n_cmpl")


def count_inputs(value: Any) -> int:
    """How many inputs llama-server sees in a prompt or an embedding's input."""
    if not isinstance(value, list) or any(isinstance(item, int | float) for item in value):
        return 1  # one text; or one list of tokens, which may have texts among them
    return max(1, len(value))


def require(body: Mapping[str, Any], name: str) -> Any:
    """A field that must be there."""
    if name not in body:
        _refuse(f"'{name}' is missing.", name)
    return body[name]


def read_list(body: Mapping[str, Any], name: str) -> list[Any]:
    """A field that must be there and be a list."""
    value = require(body, name)
    if not isinstance(value, list):
        _refuse(f"'{name}' must be a list.", name)
    return value


_TOO_DEEP = f"The body is nested more than {MAX_DEPTH} levels deep."
_TOO_MANY = f"The body has more than {MAX_VALUES:,} values (commas and opening brackets, those in texts too)."


_TOO_LARGE = 2**31


def _refuse(message: str, param: str | None = None) -> NoReturn:
    raise ProblemError(invalid_request(message, param)) from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = dict(pairs)
    if len(value) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        _refuse(f"'{twice[:100]}' stands twice in one object.", twice[:100])
    return value


def _no_constant(name: str) -> NoReturn:
    _refuse(f"The body is not JSON: {name} is not a number.")


_decoder = json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=_no_constant)


def _deeper_than(levels: int, value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(levels):
        inside = (parent.values() if isinstance(parent, dict) else parent for parent in level)
        level = [child for children in inside for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
