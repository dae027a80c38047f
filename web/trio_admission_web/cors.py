"""Lets pages of other origins use the gateway from a browser, where the settings name them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from quart import Response, request

if TYPE_CHECKING:
    from quart import Quart

    from .gateway import Gateway

ANY: Final = "*"
_EXPOSED: Final = "admission-resume, retry-after, x-request-id"
_MAX_AGE: Final = 600  # seconds that a browser may remember the answer to a preflight


def add_cors(app: Quart, gateway: Gateway) -> None:
    """Answer preflights, and mark answers as readable, for the origins that the settings name now."""
    app.before_request(partial(_preflight, gateway))
    app.after_request(partial(_mark, gateway))


def _allowed(gateway: Gateway) -> str | None:
    """Return the origin that asks, if it may."""
    origin = request.headers.get("Origin")
    allowed = gateway.settings.allowed_origins
    return origin if origin is not None and (ANY in allowed or origin in allowed) else None


async def _preflight(gateway: Gateway) -> Response | None:
    wanted = request.headers.get("Access-Control-Request-Method")
    if request.method != "OPTIONS" or wanted is None or request.url_rule is None or not _allowed(gateway):
        return None
    headers = {
        "Access-Control-Allow-Methods": ", ".join(sorted(request.url_rule.methods or ())),
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": str(_MAX_AGE),
    }
    return Response("", 204, headers)


async def _mark(gateway: Gateway, response: Response) -> Response:
    if gateway.settings.allowed_origins:
        response.vary.add("Origin")
        if origin := _allowed(gateway):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED
    return response
