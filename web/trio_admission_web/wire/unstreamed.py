"""The dialects without a stream: embeddings and rerank. The backend's answer passes as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from trio_admission_web.problems import ProblemError, bad_gateway

from .body import count_inputs, read_object, read_text
from .offer import for_upstream
from .streamed import dump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio_admission_web.problems import Problem

    from .exchange import Account


class Unstreamed(ABC):
    """An `Exchange` in which no event is ever sent: an event stream is not an answer to it."""

    stream = False
    has_tools = False
    calls_client = False
    can_be_pinned = False
    thread = ()
    tokens = (0, 0)
    account: Account | None = None
    finished = False
    failure: Problem | None = None
    output_limit: int | None = 0
    count: tuple[str, bytes] | None = None

    def __init__(self, raw: bytes) -> None:
        body = read_object(raw)
        self.model = read_text(body, "model")
        self.slots = self._count_inputs(body)
        self.upstream_body = for_upstream(raw, body)

    def pinned(self, slot: int) -> bytes:  # noqa: ARG002
        """Nothing: the backend chooses the slot."""
        return self.upstream_body

    def keepalive(self, position: int, estimated_wait: float | None, away: str | None = None) -> bytes:  # noqa: ARG002
        """Nothing: there is no stream to keep alive."""
        return b""

    def limit_output(self, limit: int) -> None:  # noqa: B027
        """Nothing: there is no output that could be limited."""

    def relay(self, data: bytes) -> bytes:  # noqa: ARG002
        """Nothing: see `answer`."""
        return b""

    def answer(self) -> bytes:
        """Raise `bad_gateway`: the backend sent events where JSON belongs."""
        raise ProblemError(bad_gateway())

    def error_event(self, problem: Problem) -> bytes:  # noqa: ARG002
        """Nothing: there is no stream to tell it in."""
        return b""

    def error_body(self, problem: Problem) -> bytes:
        """See `Exchange.error_body`."""
        return dump(problem.openai())

    @abstractmethod
    def _count_inputs(self, body: Mapping[str, Any]) -> int:
        """How many inputs the body has, each of which takes a slot."""


class Embeddings(Unstreamed):
    """OpenAI embeddings."""

    path = "/v1/embeddings"

    def _count_inputs(self, body: Mapping[str, Any]) -> int:
        return count_inputs(body["input"] if "input" in body else body.get("content"))


class NativeEmbeddings(Embeddings):
    """llama-server's own embeddings."""

    path = "/embedding"


class Rerank(Unstreamed):
    """Documents to put in order for a query."""

    path = "/v1/rerank"

    def _count_inputs(self, body: Mapping[str, Any]) -> int:
        return count_inputs(body["documents"] if "documents" in body else body.get("texts"))
