"""One request and its answer: what lives as long as they do, and what ends when the client goes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

import trio
from hypercorn.typing import ConnectionState
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.exceptions import BadRequest, RequestTimeout

from .body import WANTED
from .refusal import refusal

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
    from quart import Request

    from .body import BoundedBody
    from .refusal import Refuser

MALFORMED = "http.malformed"  # comes instead of the rest of a body that nobody can make out
STATE_KEY = "request_scope"


class RequestScope:
    """What a request owns: a nursery that dies with it, and whether it died because the client went.

    Attributes:
        nursery: Cancelled when the client disconnects, when the answer is complete, when the server stops.
        disconnected: True from the moment that the client is gone without having its whole answer; one that
            half-closes counts as gone. False in a task that is cancelled for one of the other reasons.
    """

    __slots__ = ("disconnected", "nursery")

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.disconnected = False


def request_scope(request: Request) -> RequestScope:
    """Return what `request` owns; it is in the request's ASGI scope, at `["state"]["request_scope"]`."""
    return cast("RequestScope", request.scope["state"][STATE_KEY])


class RequestConnection(TrioASGIHTTPConnection):
    """Serves one request of a ServingApp."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve the request; returns when it is answered, or cancelled because the client went."""
        try:
            request = self._create_request_from_scope(send)
        except (IndexError, ValueError):  # Quart cannot take the target apart: "?x", "http://["
            headers, content = refusal(cast("Refuser", self.app), 400)
            headers.append((b"connection", b"close"))
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": content, "more_body": False})
            return
        # One deadline, from here: Quart's own counts from the first read, and iteration has none.
        body_timeout, request.body_timeout = request.body_timeout, None
        state = self.scope.setdefault("state", ConnectionState({}))
        body = cast("BoundedBody", request.body)
        body.wanted = state.pop(WANTED, None)
        answered = False

        async def send_noting_the_end(message: ASGISendEvent) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def watch_client() -> None:
            await _until_gone(body, body_timeout, receive)
            # Hypercorn says this at the end of each answer, from inside the last send. To cancel that send
            # would leave a connection that is kept alive without its idle timer.
            if not answered:
                owned.disconnected = True
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            owned = RequestScope(nursery)
            state[STATE_KEY] = owned
            nursery.start_soon(watch_client)
            await self.handle_request(nursery, request, send_noting_the_end)


async def _until_gone(body: BoundedBody, seconds: float | None, receive: ASGIReceiveCallable) -> None:
    """Take what the client sends until it is gone; fail the body if it is not complete in time."""
    with trio.move_on_after(inf if seconds is None else seconds) as patience:
        if not await _fill(body, receive):
            return
    if patience.cancelled_caught:
        body.fail(RequestTimeout(f"The request body did not arrive within {seconds:g} s."))
    while (await receive())["type"] != "http.disconnect":
        pass


async def _fill(body: BoundedBody, receive: ASGIReceiveCallable) -> bool:
    """Take the body as it arrives, and say whether the client stayed until its end, proper or not."""
    while (message := await receive())["type"] == "http.request":
        body.append(message.get("body", b""))
        if not message.get("more_body", False):
            body.set_complete()
            return True
    if message["type"] == MALFORMED:
        body.fail(BadRequest("The request body is malformed."))
        return True
    return False
