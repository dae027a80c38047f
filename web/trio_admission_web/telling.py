"""What the log and the metrics are told of one request on its way through the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import trio

from . import problems
from .logs import tell

if TYPE_CHECKING:
    from .metrics import Metrics
    from .problems import Problem


@final
class Telling:
    """What becomes of one request, from its arrival on.

    Args:
        metrics: Count it.
        request_id: Its name.
        route: The address that it came to, as it is in the table of routes.
    """

    def __init__(self, metrics: Metrics, request_id: str, route: str) -> None:
        self.arrived = trio.current_time()
        self.outcome = ""
        """How it has ended, a word of a closed vocabulary; empty while it is on its way."""
        self.detail: str | None = None
        """What the outcome does not say."""
        self._metrics = metrics
        self._request_id = request_id
        self._route = route
        self._first_byte: float | None = None

    def answered(self, failure: Problem | None) -> None:
        """Take note of a whole answer, and of the failure that it tells of."""
        self.outcome = "answered"
        if failure is not None:
            self.failed(failure)

    def failed(self, problem: Problem) -> None:
        """Take note of the problem that has ended it."""
        self.outcome = problem.code if problem.code in problems.CODES else "backend_error"

    def heard(self) -> None:
        """Take note that something has come from the backend; only the first time counts."""
        if self._first_byte is None:
            self._first_byte = trio.current_time() - self.arrived
            self._metrics.first_byte(self._route, self._first_byte)

    def kept_alive(self) -> None:
        """Count a sign of life to its client."""
        self._metrics.keepalive(self._route)

    def ended(self, *, backend: str, granted: float | None, tokens: tuple[int, int], **facts: Any) -> None:
        """Tell all of it, once.

        Args:
            backend: Where it went at last.
            granted: When it got a slot; None = never.
            tokens: Of its prompt, and generated.
            facts: What else the log says of it, as `tell` takes it.
        """
        seconds = trio.current_time() - self.arrived
        prompt, generated = tokens
        self._metrics.tokens(backend, prompt=prompt, generated=generated)
        self._metrics.ended(self._route, self.outcome, seconds)
        tell(
            self._request_id,
            route=self._route,
            backend=backend,
            wait=None if granted is None else granted - self.arrived,
            first_byte=self._first_byte,
            duration=seconds,
            outcome=self.outcome,
            detail=self.detail,
            **facts,
        )
