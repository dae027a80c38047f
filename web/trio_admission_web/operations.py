"""What an operator asks of the gateway itself, and of the backends without making them decode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from quart import Response, g, request

from . import problems
from .access import is_admin
from .condition import AWAY_RETRY, State
from .gateway import DRAIN_RETRY
from .metrics import CONTENT_TYPE
from .problems import ProblemError
from .rendering import json_response, typed
from .upstream import LostError, passed_on

if TYPE_CHECKING:
    from quart import Quart

    from .arrival import Arrival
    from .backend import Backend
    from .gateway import Gateway
    from .passage import Passage

_COUNTS: Final = ("slots", "held", "free", "waiting", "parked", "returning")


def add_operations(app: Quart, gateway: Gateway) -> None:
    """Give the application these addresses."""
    app.add_url_rule("/health", "health", _health)
    app.add_url_rule("/ready", "ready", partial(_ready, gateway))
    app.add_url_rule("/metrics", "metrics", partial(_metrics, gateway))
    app.add_url_rule("/admission", "admission", partial(_admission, gateway))
    app.add_url_rule("/admission/requests/<name>", "cancel", partial(_cancel, gateway), methods=["DELETE"])
    for path in ("/props", "/slots"):
        app.add_url_rule(path, path, partial(_look, gateway, path))


async def _health() -> Response:
    return json_response({"status": "ok"})


async def _ready(gateway: Gateway) -> Response:
    """Say whether anybody could be served, and by which backends."""
    if gateway.draining:
        raise ProblemError(problems.draining(retry_after=DRAIN_RETRY))
    states: dict[str, State] = {}

    async def ask(backend: Backend) -> None:
        states[backend.name] = await backend.look()

    async with trio.open_nursery() as nursery:
        for backend in gateway.backends.values():
            nursery.start_soon(ask, backend)
    if not any(state.is_good for state in states.values()):
        refusals = "; ".join(
            f"{name} is refusing, since {backend.condition.heard}"
            for name, backend in gateway.backends.items()
            if states[name] is State.REFUSING
        )
        raise ProblemError(problems.backend_unavailable(retry_after=AWAY_RETRY, reason=refusals))
    words = {name: states[name].value for name in gateway.backends}
    return json_response({"status": "ready", "backends": words})


async def _metrics(gateway: Gateway) -> Response:
    return Response(gateway.metrics.exposition(), content_type=CONTENT_TYPE)


async def _admission(gateway: Gateway) -> Response:
    """Show the backends and who waits; to those who are no admin, what is their own alone."""
    return json_response({
        "backends": {backend.name: _view(gateway, backend) for backend in gateway.backends.values()}
    })


def _view(gateway: Gateway, backend: Backend) -> dict[str, Any]:
    now = trio.current_time()
    line = [
        {
            "id": each.id,
            "position": each.position,
            "waited": round(now - each.arrived, 3),
            "estimated_wait": each.estimated_wait,
            **({"flow": each.flow} if each.flow else {}),
        }
        for each in gateway.line(backend)
        if _is_own(each)
    ]
    if not is_admin():
        return {"line": line}
    counts = backend.pool.statistics()
    condition = backend.condition
    state = {"state": condition.state.value, **({"reason": condition.heard} if condition.heard else {})}
    return {**state, **{name: getattr(counts, name) for name in _COUNTS}, "line": line}


async def _cancel(gateway: Gateway, name: str) -> Response:
    found = [each for each in gateway.requests if each.id == name and _is_own(each)]
    if not found:
        raise ProblemError(problems.not_found())
    for each in found:  # clients choose their ids, so two may have chosen the same
        each.cancel(problems.cancelled())
    return json_response({"id": name, "cancelled": len(found)})


def _is_own(each: Arrival | Passage) -> bool:
    return is_admin() or each.flow == g.key.flow


async def _look(gateway: Gateway, path: str) -> Response:
    """Show what a backend says of itself: ``?backend=NAME``, else the default one."""
    name = request.args.get("backend")
    backend = gateway.backend if name is None else gateway.backends.get(name)
    if backend is None:
        raise ProblemError(problems.not_found())
    try:
        # Also of one that is away: two gateways in a circle would never find out if neither sent this on.
        answer = await backend.upstream.fetch("GET", path, headers=passed_on(request.scope["headers"]))
    except LostError:
        backend.condition.check_now()
        raise
    return typed(Response(answer.body, answer.status), answer.content_type)
