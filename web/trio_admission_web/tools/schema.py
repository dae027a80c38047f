"""Python annotations -> JSON Schema, and values -> complaints."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Schema: TypeAlias = "Mapping[str, Any] | bool"

_NAMES: Final[dict[object, str]] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
}  # fmt: skip
_TYPES: Final[dict[str, set[type]]] = {
    "string": {str}, "integer": {int}, "number": {int, float}, "boolean": {bool}, "null": {type(None)},
    "array": {list}, "object": {dict},
}  # fmt: skip
_ARGUMENT: Final = re.compile(r"\s+\*{0,2}(\w+)(?: \(.*?\))?:\s*(.*)")
_SECTION: Final = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*")


def describe(function: Callable[..., object]) -> tuple[str, dict[str, Any]]:
    """Return a function's description, and the JSON Schema of the object that its arguments make.

    Types come from the annotations: ``str``, ``int``, ``float``, ``bool``, ``None``, ``Any``, ``list``,
    ``dict`` with text as keys, `Literal`, unions, and `Annotated` with a text (the description) or a mapping
    (further keywords, of which ``minLength``, ``maxLength``, ``minimum`` and ``maximum`` are checked).
    Descriptions come from the docstring: all up to its first section, and what stands under ``Args:``.

    Raises:
        TypeError: An annotation is missing or is none of these, or a parameter cannot be given by name.
    """
    summary, told = _read_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise TypeError(f"{function.__name__}: {name} cannot be given by name")
        if name not in hints:
            raise TypeError(f"{function.__name__}: {name} has no annotation")
        described = {"description": told[name]} if name in told else {}
        properties[name] = _schema(hints[name], f"{function.__name__}: {name}") | described
        if parameter.default is parameter.empty:
            required.append(name)
    return summary, {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False
    }  # fmt: skip


def complaints(value: object, schema: Schema, where: str) -> Iterator[str]:
    """Yield what is wrong with a JSON value, one sentence each; of a union's, that nothing fits.

    Args:
        value: As `json` reads it.
        schema: Any well-formed JSON Schema; of one that `describe` did not make, what `describe` does not
            make either is not looked at.
        where: What the sentences call the value.
    """
    if isinstance(schema, bool):
        if not schema:
            yield f"{where} must not be there"
    elif not _is(value, schema):
        yield f"{where} must be {_called(schema)}"
    elif isinstance(value, str):
        yield from _outside(len(value), schema, "minLength", "maxLength", where, " characters long")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from complaints(item, schema.get("items", {}), f"{where}[{index}]")
    elif isinstance(value, dict):
        yield from _inside_object(value, schema, where)
    elif isinstance(value, int | float):
        yield from _outside(value, schema, "minimum", "maximum", where, "")


def _inside_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    known = schema.get("properties", {})
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}.{name} is missing"
    for name, item in value.items():
        inner = known.get(name, others)
        if inner is False:
            yield f"{where}.{name} is not an argument"
        else:
            yield from complaints(item, inner, f"{where}.{name}")


def _outside(
    size: float, schema: Mapping[str, Any], least: str, most: str, where: str, unit: str
) -> Iterator[str]:
    if least in schema and size < schema[least]:
        yield f"{where} must be at least {schema[least]}{unit}"
    if most in schema and size > schema[most]:
        yield f"{where} must be at most {schema[most]}{unit}"


def _is(value: object, schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return not all(any(complaints(value, each, "")) for each in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(each) and value == each for each in schema["enum"])
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return "type" not in schema or any(type(value) in _TYPES[kind] for kind in _kinds(schema))


def _called(schema: Schema) -> str:
    if isinstance(schema, bool) or not schema.keys() & {"anyOf", "enum", "type"}:
        return "a JSON value"
    if "anyOf" in schema:
        return " or ".join(_called(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(repr(each) for each in schema["enum"])
    return " or ".join(map(_with_article, _kinds(schema)))


def _with_article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds: str | list[str] = schema["type"]
    return [kinds] if isinstance(kinds, str) else kinds


def _schema(hint: Any, where: str) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    schema: dict[str, Any]
    if hint is Any:
        schema = {}
    elif origin is Annotated:
        schema = _schema(arguments[0], where)
        for extra in arguments[1:]:
            schema |= {"description": extra} if isinstance(extra, str) else extra
    elif hint in _NAMES:
        schema = {"type": _NAMES[hint]}
    elif origin is Literal:
        schema = {"enum": list(arguments)}
    elif origin in {Union, types.UnionType}:
        schema = {"anyOf": [_schema(each, where) for each in arguments]}
    elif (origin or hint) is list:
        schema = {"type": "array"} | ({"items": _schema(arguments[0], where)} if arguments else {})
    elif (origin or hint) is dict and (not arguments or arguments[0] is str):
        inner = {"additionalProperties": _schema(arguments[1], where)} if arguments else {}
        schema = {"type": "object"} | inner
    else:
        raise TypeError(f"{where} has a type that JSON does not have: {hint!r}")
    return schema


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    summary: list[str] = []
    told: dict[str, str] = {}
    section, name = "", ""
    for line in text.splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif not section:
            summary.append(line)
        elif section in {"Args", "Arguments"}:
            if argument := _ARGUMENT.fullmatch(line):
                name = argument[1]
                told[name] = argument[2]
            elif name and line.strip():
                told[name] += " " + line.strip()
    return " ".join("\n".join(summary).split()), told
