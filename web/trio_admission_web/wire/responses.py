"""OpenAI responses: `/v1/responses`."""

from __future__ import annotations

import time
import uuid
from typing import Any

from trio_admission_web.problems import Problem, upstream_error

from .body import read_choices, read_flag, read_limit, read_object, read_text, require
from .choices import LIMITS
from .offer import for_upstream, read_conversation
from .streamed import CUT, Streamed, dump

_LAST = {"response.completed", "response.incomplete", "response.failed"}


class Responses(Streamed):
    """A response; see `Exchange`.

    llama-server makes several of one request with `n`, all in one stream.
    """

    path = "/v1/responses"
    _limits = ("max_output_tokens", *LIMITS)
    _count_path = "/v1/responses/input_tokens"
    _mark = b'"response":'  # a member of the events that begin and end a response

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        require(body, "input")
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.slots = read_choices(body)
        self.output_limit = read_limit(body, *self._limits)
        self.conversation = read_conversation(body)
        self.can_be_pinned = self.slots == 1
        self.upstream_body = for_upstream(raw, body, {} if self.stream else {"stream": b"true"})
        self._begun: dict[str, Any] = {}
        self._created: set[str] = set()
        self._ended: list[dict[str, Any]] = []
        self._sent = 0  # events, which is the sequence number of the next one

    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""
        told = problem.openai()["error"]
        # SDKs raise on `error`; the other members are the event as it is documented.
        error = {"code": problem.code, "message": problem.message, "param": problem.param, "error": told}
        response = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self.model,
            "output": [],
            **self._begun,
            "status": "failed",
            "error": {"code": problem.code, "message": problem.message},
        }
        return self._event("error", error, 0) + self._event("response.failed", {"response": response}, 1)

    def _event(self, kind: str, members: dict[str, Any], after: int) -> bytes:
        data = dump({"type": kind, "sequence_number": self._sent + after, **members})
        return f"event: {kind}\ndata: ".encode() + data + b"\n\n"

    def _pass(self, events: bytes) -> bytes:
        self._sent += events.count(b"\ndata:")  # every event has its name above its data
        return events

    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:  # noqa: ARG002
        kind = chunk.get("type")
        if kind == "response.created":
            self._begun = chunk["response"]
            self._created.add(self._begun["id"])
        if kind == "response.failed":
            self.failure = upstream_error(500, dump(chunk["response"]))
        elif kind in _LAST:
            self._ended.append(chunk["response"])
        return self.failure is not None or len(self._ended) == self.slots

    def _fold(self, chunk: dict[str, Any]) -> None:
        """Nothing: the last event has the whole response."""

    def _assemble(self) -> object:
        answers = [self._in_one_piece(response) for response in self._ended]
        return answers if len(answers) > 1 else answers[0]

    def _in_one_piece(self, response: dict[str, Any]) -> dict[str, Any]:
        """Add what the last event has not: the moment of the end, how thoughts ended, a cut character."""
        output = [
            {"status": "completed", **item} if item.get("type") == "reasoning" else item
            for item in response.get("output") or ()
        ]
        if not output and response["id"] not in self._created:  # which the first character does
            output = [_cut()]
        return {"completed_at": response["created_at"], **response, "output": output}


def _cut() -> dict[str, Any]:
    return {
        "type": "message",
        "status": "completed",
        "id": f"msg_{uuid.uuid4().hex}",
        "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": CUT}],
        "role": "assistant",
    }
