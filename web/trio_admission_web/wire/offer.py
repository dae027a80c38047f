"""The member `admission` of a request: what the client has to say to the gateway, and not to the backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from trio_admission_web.problems import ProblemError, invalid_request

from .body import read_object
from .splice import splice

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Offer:
    """What the request says.

    Args:
        tools: Names of the gateway's own that the model may call, each once.
        approval: Whether a person is asked before a tool runs; ``auto`` leaves it to the tool.
    """

    tools: tuple[str, ...] = ()
    approval: Literal["always", "auto", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class Function:
    """A tool as a model is told of it; ``parameters`` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def read_offer(raw: bytes) -> Offer | None:
    """Return what a request's body says in `admission`, None if it does not say anything there.

    Null means what it means in the other members: nothing is said.

    Raises:
        ProblemError: `invalid_request`, if it does not say it as it should, or the body is no object.
    """
    if b'"admission"' not in raw:  # spares most bodies a second reading
        return None
    body = read_object(raw)
    said = _members(body.get("admission"))
    if said is None:
        return None
    if read_conversation(body) is None and "conversation" in said:
        _refuse("'admission.conversation' must be text that is not empty.", "admission.conversation")
    if said.keys() == {"conversation"}:
        return Offer()
    tools, approval = said.get("tools"), said.get("approval", "auto")
    if not isinstance(tools, list) or not tools or not all(isinstance(each, str) for each in tools):
        _refuse("'admission.tools' must be a list of names.", "admission.tools")
    if not isinstance(approval, str) or approval not in {"always", "auto", "never"}:
        _refuse("'admission.approval' must be 'always', 'auto' or 'never'.", "admission.approval")
    return Offer(tuple(dict.fromkeys(tools)), cast("Literal['always', 'auto', 'never']", approval))


def _members(said: object) -> dict[str, Any] | None:
    """Return what is said, without what is null; None if nothing is."""
    if said is None:
        return None
    if not isinstance(said, dict):
        _refuse("'admission' must be an object.", "admission")
    for name in said:
        if name not in {"tools", "approval", "conversation"}:
            _refuse(f"'admission.{name[:100]}' is not known here.", f"admission.{name[:100]}")
    members = {name: value for name, value in said.items() if value is not None}
    return members if members or not said else None


def read_conversation(body: Mapping[str, Any]) -> str | None:
    """Return what the client calls the conversation in a body that is read; None if it does not."""
    said = body.get("admission")
    name = said.get("conversation") if isinstance(said, dict) else None
    return name if isinstance(name, str) and name else None


def for_upstream(
    raw: bytes, body: Mapping[str, Any], changes: Mapping[str, bytes | None] | None = None
) -> bytes:
    """Return the bytes of a body as the backend gets them: changed, and without what is not for it.

    That is `admission`, and `id_slot`, which a client cannot know to be idle: in a busy slot it would spoil
    what is decoded there.

    Args:
        raw: The client's bytes.
        body: The same, read.
        changes: As `splice` takes them.
    """
    kept_back = {name: None for name in ("admission", "id_slot") if name in body}
    changes = {**(changes or {}), **kept_back}
    return splice(raw, changes) if changes else raw


def _refuse(message: str, param: str) -> NoReturn:
    raise ProblemError(invalid_request(message, param))
