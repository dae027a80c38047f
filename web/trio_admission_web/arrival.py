"""A request whose body is still on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio

from .problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .problems import Problem


@final
class Arrival:
    """One request from its head until it is here.

    Args:
        id: Its name in logs, errors and the admin view.
        flow: On whose behalf it is; empty where no keys are configured.
    """

    def __init__(self, id: str, flow: str) -> None:  # noqa: A002 - it is called so everywhere
        self.id = id
        self.flow = flow
        self._scope = trio.CancelScope()
        self._ended_by: Problem | None = None

    def cancel(self, problem: Problem) -> None:
        """Wait no longer for the body, and tell the client why."""
        self._ended_by = problem
        self._scope.cancel()

    async def body(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Wait for the body.

        Raises:
            ProblemError: Of `cancel`.
        """
        with self._scope:
            body = await read()
        if self._ended_by is not None:
            raise ProblemError(self._ended_by)
        return body
