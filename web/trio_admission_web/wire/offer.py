"""The member `admission` of a request: which of the gateway's own tools the model may call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from trio_admission_web.problems import ProblemError, invalid_request

from .body import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Offer:
    """What the request says.

    Args:
        tools: Names, each once.
        approval: Whether a person is asked before a tool runs; ``auto`` leaves it to the tool.
    """

    tools: tuple[str, ...]
    approval: Literal["always", "auto", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class Function:
    """A tool as a model is told of it; ``parameters`` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def read_offer(raw: bytes) -> Offer | None:
    """Return what a request's body says in `admission`, None if it has no such member.

    Raises:
        ProblemError: `invalid_request`, if it does not say it as it should, or the body is no object.
    """
    if b'"admission"' not in raw:  # spares most bodies a second reading
        return None
    body = read_object(raw)
    if "admission" not in body:
        return None
    said = body["admission"]
    if not isinstance(said, dict):
        _refuse("'admission' must be an object.", "admission")
    for name in said:
        if name not in {"tools", "approval"}:
            _refuse(f"'admission.{name[:100]}' is not known here.", f"admission.{name[:100]}")
    tools, approval = said.get("tools"), said.get("approval", "auto")
    if not isinstance(tools, list) or not tools or not all(isinstance(each, str) for each in tools):
        _refuse("'admission.tools' must be a list of names.", "admission.tools")
    if not isinstance(approval, str) or approval not in {"always", "auto", "never"}:
        _refuse("'admission.approval' must be 'always', 'auto' or 'never'.", "admission.approval")
    return Offer(tuple(dict.fromkeys(tools)), cast("Literal['always', 'auto', 'never']", approval))


def _refuse(message: str, param: str) -> NoReturn:
    raise ProblemError(invalid_request(message, param))
