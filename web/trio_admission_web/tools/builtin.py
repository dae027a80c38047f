"""Two tools that are of use everywhere and can do no harm."""

from __future__ import annotations

import ast
import operator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final
from zoneinfo import ZoneInfo

from .tool import ToolError, tool

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST: Final = 10**100
_LARGEST_EXPONENT: Final = 1000
_BINARY: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[float], float]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


@tool(approval="never")
async def current_time(timezone: Annotated[str, {"maxLength": 40}] = "UTC") -> str:
    """Tell the date and time of now, as ISO 8601 with the weekday.

    Args:
        timezone: A name such as UTC or Europe/Paris.
    """
    try:
        zone = ZoneInfo(timezone)
    except (ValueError, OSError, LookupError):  # no name at all; a folder; unknown
        raise ToolError(f"There is no time zone {timezone!r}.") from None
    return f"{datetime.now(zone):%A %Y-%m-%dT%H:%M:%S%z}"


@tool(approval="never")
async def calculate(expression: Annotated[str, {"maxLength": 80}]) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, such as (2 + 3) * 4.
    """
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is no arithmetic expression.") from None
    except ZeroDivisionError:
        raise ToolError("That divides by zero.") from None
    except OverflowError:
        raise ToolError("A number is too large.") from None
    return str(value)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left, ast.Pow(), right):
            base, exponent = _value(left), _value(right)
            if abs(exponent) > _LARGEST_EXPONENT:
                raise OverflowError
            return _bounded(base**exponent)
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
    raise ValueError


def _bounded(value: object) -> float:
    if not isinstance(value, int | float):  # a root of a negative number is complex
        raise TypeError
    if not -_LARGEST < value < _LARGEST:
        raise OverflowError
    return value
