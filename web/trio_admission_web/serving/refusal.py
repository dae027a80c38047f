"""The answer to what cannot be taken for a request, and so reaches no view."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypercorn.typing import AppWrapper

    Header = tuple[bytes, bytes]


class Refuser:
    """An application that words these answers itself."""

    def refusal(self, status: int) -> tuple[list[Header], bytes]:
        """Return headers and body for a status. Called once for each that is refused."""
        del status  # says it all
        return [], b""


def refusal(app: Refuser, status: int, *, room: float = inf) -> tuple[list[Header], bytes]:
    """Return the headers, with a length, and the body of an answer of ``status``.

    Args:
        app: Whose words they are.
        status: Says what is wrong.
        room: Bytes that the client takes now; whoever has too little gets no body.
    """
    headers, body = app.refusal(status)
    if len(body) > room:
        headers, body = [each for each in headers if each[0] != b"content-type"], b""
    return [*headers, (b"content-length", b"%d" % len(body))], body


def refuser_of(wrapped: AppWrapper) -> Refuser:
    """Return the application that Hypercorn serves; another one than ours has nothing to say."""
    app = getattr(wrapped, "app", None)
    return app if isinstance(app, Refuser) else Refuser()
