"""Resume tickets over HTTP: the names that clients know them by.

A client must have the name before its stream begins, and whether there will be a ticket is known only at the
end. So a name is promised first, and costs nothing until a ticket is kept under it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, final

import trio

if TYPE_CHECKING:
    from trio_admission import ResumeTicket

HEADER: Final = "admission-resume"


@final
class Resumes:
    """The tickets that are out, by the names that clients know them by."""

    def __init__(self) -> None:
        self._tickets: dict[str, tuple[str, ResumeTicket]] = {}

    @staticmethod
    def promise() -> str:
        """Return an unguessable name for a ticket that there may be later."""
        return secrets.token_urlsafe(18)

    def keep(self, name: str, backend: str, ticket: ResumeTicket) -> None:
        """Keep a ticket of a backend's pool under its name, until it is taken or has expired."""
        now = trio.current_time()
        self._tickets = {
            each: (pool, kept) for each, (pool, kept) in self._tickets.items() if kept.expires_at > now
        }
        self._tickets[name] = (backend, ticket)

    def backend(self, name: str | None) -> str | None:
        """Return which backend the ticket is of, None if there is no such ticket."""
        return self._tickets[name][0] if name in self._tickets else None

    def take(self, name: str | None) -> ResumeTicket | None:
        """Return the ticket, once; None if there is no such ticket."""
        return self._tickets.pop(name)[1] if name in self._tickets else None
