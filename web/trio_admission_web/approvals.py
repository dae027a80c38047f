"""The questions that wait for a person: asked by a request, answered over HTTP, gone with either."""

from __future__ import annotations

import logging
import math
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .problems import ProblemError, invalid_request, not_found, permission_denied
from .tools import ToolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .tools import Tool

log: Final = logging.getLogger(__name__)

_LONGEST_REASON: Final = 2000


@dataclass(frozen=True, slots=True)
class Decision:
    """How a question was answered.

    Args:
        allowed: Whether the tool may run.
        by: Whose key it was, ``""`` without keys; None = nobody answered in time.
        reason: For the model.
        arguments: To be passed in place of the model's; None = the model's.
    """

    allowed: bool
    by: str | None
    reason: str = ""
    arguments: Mapping[str, Any] | None = None

    @property
    def word(self) -> str:
        """``allow``, ``deny`` or ``expired``."""
        return "expired" if self.by is None else "allow" if self.allowed else "deny"


@final
@dataclass(eq=False, kw_only=True)
class Question:
    """One call of a tool that waits for a person; in the book until it is decided or given up."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    request: str
    flow: str
    tool: Tool
    arguments: Mapping[str, Any]
    asked: float
    deadline: float
    expires_at: int
    _decision: Decision | None = None
    _decided: trio.Event = field(default_factory=trio.Event)

    def facts(self) -> dict[str, Any]:
        """What a person needs to know of it. ``expires_at`` is in seconds since 1970."""
        return {
            "id": self.id,
            "tool": self.tool.name,
            "arguments": self.arguments,
            "expires_at": self.expires_at,
        }

    def decide(self, decision: Decision) -> None:
        """Answer it."""
        self._decision = decision
        self._decided.set()
        log.info(
            "approval %s: request %s, flow %r, tool %s: %s by %r%s after %.3f s",
            self.id, self.request, self.flow, self.tool.name, decision.word, decision.by,
            "" if decision.arguments is None else " with other arguments", trio.current_time() - self.asked,
        )  # fmt: skip

    async def decision(self) -> Decision:
        """Block until it is decided, at the latest when it expires, which denies it."""
        with trio.move_on_at(self.deadline):
            await self._decided.wait()
        if self._decision is None:
            self.decide(Decision(allowed=False, by=None))
        assert self._decision is not None
        return self._decision


@final
class Approvals:
    """The book of all questions that are open.

    Args:
        ttl: Seconds after which a question that nobody has answered counts as denied.
    """

    def __init__(self, *, ttl: float = 3600.0) -> None:
        self._ttl = ttl
        self._open: dict[str, Question] = {}

    @contextmanager
    def asked(
        self, tool: Tool, arguments: Mapping[str, Any], *, request: str, flow: str = ""
    ) -> Iterator[Question]:
        """Have a question open for the length of a block, or until it is decided.

        Args:
            tool: What is to run.
            arguments: What the model passes.
            request: Id of the request.
            flow: Whose request it is; only the same flow may decide.
        """
        now = trio.current_time()
        question = Question(
            request=request,
            flow=flow,
            tool=tool,
            arguments=arguments,
            asked=now,
            deadline=now + self._ttl,
            expires_at=math.floor(time.time() + self._ttl),
        )
        self._open[question.id] = question
        try:
            yield question
        finally:
            self._open.pop(question.id, None)

    def open(self, flow: str | None) -> list[Question]:
        """Return the questions of a flow, oldest first; None = of all flows."""
        return [each for each in self._open.values() if flow in {None, each.flow}]

    def decide(self, name: str, body: Mapping[str, Any], *, flow: str = "") -> Decision:
        """Answer a question. The first answer counts; after it there is no such question any more.

        Args:
            name: The question's id.
            body: ``{"decision": "allow" | "deny", "reason"?: text, "arguments"?: {...}}``; with ``allow``,
                ``arguments`` replace the model's.
            flow: Who answers.

        Raises:
            ProblemError: 404 if there is no such question, or not any more; 403 if it is another flow's; 400
                if the body is not such. It stays open then.
        """
        question = self._open.get(name)
        if question is None or question.deadline <= trio.current_time():
            raise ProblemError(not_found())
        if question.flow != flow:
            raise ProblemError(permission_denied())
        decision = _read(body, question.tool, flow)
        del self._open[name]
        question.decide(decision)
        return decision


def _read(body: Mapping[str, Any], tool: Tool, flow: str) -> Decision:
    for name in body:
        if name not in {"decision", "reason", "arguments"}:
            raise ProblemError(invalid_request(f"'{name[:100]}' is not known here.", name[:100]))
    word, reason, arguments = body.get("decision"), body.get("reason"), body.get("arguments")
    if not isinstance(word, str) or word not in {"allow", "deny"}:
        raise ProblemError(invalid_request("'decision' must be 'allow' or 'deny'.", "decision"))
    if reason is not None and not (isinstance(reason, str) and len(reason) <= _LONGEST_REASON):
        message = f"'reason' must be text of at most {_LONGEST_REASON} characters."
        raise ProblemError(invalid_request(message, "reason"))
    if arguments is not None:
        if word == "deny":
            raise ProblemError(invalid_request("Only 'allow' takes 'arguments'.", "arguments"))
        try:
            tool.check(arguments)
        except ToolError as error:
            raise ProblemError(invalid_request(str(error), "arguments")) from None
    return Decision(allowed=word == "allow", by=flow, reason=reason or "", arguments=arguments)
