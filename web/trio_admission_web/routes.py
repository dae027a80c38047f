"""Addresses -> exchanges: read a request, send it on its way, render what comes of it."""

from __future__ import annotations

import json
import logging
import re
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from quart import Response, g, request
from quart.wrappers.response import ResponseBody
from werkzeug.exceptions import HTTPException

from . import problems
from .admission import DRAIN_RETRY, Passage
from .problems import Problem, ProblemError
from .relay import Relay
from .serving.connection import request_scope
from .upstream import passed_on
from .wire.chat import Chat
from .wire.completions import Completions
from .wire.messages import Messages
from .wire.native import Completion, Infill
from .wire.responses import Responses
from .wire.unstreamed import Embeddings, NativeEmbeddings, Rerank

if TYPE_CHECKING:
    from collections.abc import Callable

    from quart import Quart

    from .admission import Gateway
    from .upstream import Header
    from .wire.exchange import Exchange


log: Final = logging.getLogger(__name__)

# Everything that makes the backend decode.
ADMITTED: Final[dict[str, Callable[[bytes], Exchange]]] = {
    "/v1/chat/completions": Chat,
    "/chat/completions": Chat,
    "/v1/completions": Completions,
    "/completion": Completion,
    "/completions": Completion,
    "/infill": Infill,
    "/v1/responses": Responses,
    "/responses": Responses,
    "/v1/messages": Messages,
    "/v1/embeddings": Embeddings,
    "/embedding": NativeEmbeddings,
    "/embeddings": NativeEmbeddings,
    "/v1/rerank": Rerank,
    "/v1/reranking": Rerank,
    "/rerank": Rerank,
    "/reranking": Rerank,
}
# What does not decode: asked of the backend at once, whoever waits.
NOT_ADMITTED: Final[dict[str, str]] = {
    "/v1/models": "GET",
    "/models": "GET",
    "/v1/chat/completions/input_tokens": "POST",
    "/v1/responses/input_tokens": "POST",
    "/v1/messages/count_tokens": "POST",
    "/tokenize": "POST",
    "/detokenize": "POST",
    "/apply-template": "POST",
}

# Seconds until a backend that is not ready may be: it loads its model.
_UNREADY_RETRY: Final = 2
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STREAM_HEADERS: Final = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def add_routes(app: Quart, gateway: Gateway) -> None:
    """Give the application every address that there is, and its way of telling errors."""
    for path, exchange in ADMITTED.items():
        app.add_url_rule(path, path, partial(_admit, gateway, exchange), methods=["POST"])
    for path, method in NOT_ADMITTED.items():
        app.add_url_rule(path, path, partial(_ask, gateway, method, path), methods=[method])
    app.add_url_rule("/health", "health", _health)
    app.add_url_rule("/ready", "ready", partial(_ready, gateway))
    app.add_url_rule("/admission", "admission", partial(_admission, gateway))
    app.add_url_rule("/admission/requests/<name>", "cancel", partial(_cancel, gateway), methods=["DELETE"])
    app.before_request(_name_request)
    app.after_request(_sign_response)
    app.register_error_handler(ProblemError, _render_problem)
    app.register_error_handler(HTTPException, partial(_render_http_exception, gateway))


async def _admit(gateway: Gateway, read: Callable[[bytes], Exchange]) -> Response:
    """Answer a request that makes the backend decode."""
    if gateway.draining:
        raise ProblemError(problems.draining(retry_after=DRAIN_RETRY))
    exchange = read(await _body())
    nursery = request_scope(request).nursery
    passage = Passage(
        gateway,
        exchange,
        id=g.request_id,
        headers=_upstream_headers(),
        query=request.query_string,
        cut=nursery.cancel_scope.cancel,
    )
    nursery.start_soon(passage.run)
    answer = await passage.answer()
    if not isinstance(answer.body, Relay):
        return _typed(Response(answer.body, answer.status), answer.content_type)
    response = Response(_Drain(answer.body), answer.status, _STREAM_HEADERS)
    response.timeout = None
    return _typed(response, answer.content_type)


async def _ask(gateway: Gateway, method: str, path: str) -> Response:
    """Ask the backend at once, whoever waits, and pass its answer on as it is."""
    answer = await gateway.backend.upstream.fetch(
        method, path, headers=_upstream_headers(), query=request.query_string, body=await _body()
    )
    return _typed(Response(answer.body, answer.status), answer.content_type)


async def _health() -> Response:
    return _json({"status": "ok"})


async def _ready(gateway: Gateway) -> Response:
    if gateway.draining:
        raise ProblemError(problems.draining(retry_after=DRAIN_RETRY))
    if not await gateway.backend.ready():
        raise ProblemError(problems.backend_unavailable(retry_after=_UNREADY_RETRY))
    return _json({"status": "ready"})


async def _admission(gateway: Gateway) -> Response:
    now = trio.current_time()
    counts = gateway.backend.pool.statistics()
    line = [
        {
            "id": each.id,
            "position": each.position,
            "waited": round(now - each.arrived, 3),
            "estimated_wait": each.estimated_wait,
        }
        for each in gateway.line()
    ]
    names = ("slots", "held", "free", "waiting", "parked", "returning")
    facts = {name: getattr(counts, name) for name in names}
    return _json({"backends": {gateway.backend.name: {**facts, "line": line}}})


async def _cancel(gateway: Gateway, name: str) -> Response:
    found = [each for each in gateway.passages if each.id == name]
    if not found:
        raise ProblemError(problems.not_found())
    for each in found:  # clients choose their ids, so two may have chosen the same
        each.cancel(problems.cancelled())
    return _json({"id": name, "cancelled": len(found)})


class _Drain(ResponseBody):
    """A relay as Quart wants the body of a response."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def __aenter__(self) -> Relay:
        return self._relay

    async def __aexit__(self, *_: object) -> None:
        """Leave the relay to its passage, which ends with the request."""


async def _body() -> bytes:
    # Not kept by the request: a body can be large, and its request may wait for long.
    return await request.get_data(cache=False, as_text=False, parse_form_data=False)


def _upstream_headers() -> list[Header]:
    headers = passed_on(request.scope["headers"])
    if not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    return [*headers, (b"x-request-id", g.request_id.encode())]


def _json(value: dict[str, object], status: int = 200) -> Response:
    return Response(json.dumps(value), status, content_type="application/json")


def _typed(response: Response, content_type: bytes | None) -> Response:
    if content_type is None:
        del response.headers["Content-Type"]
    else:
        response.headers["Content-Type"] = content_type.decode("latin-1")
    return response


async def _name_request() -> None:
    names = request.headers.getlist("X-Request-Id")
    sane = len(names) == 1 and _SANE_ID.fullmatch(names[0])
    g.request_id = names[0] if sane else uuid.uuid4().hex


async def _sign_response(response: Response) -> Response:
    response.headers["X-Request-Id"] = g.request_id
    return response


async def _render_problem(error: ProblemError) -> Response:
    if error.__cause__ is not None:
        log.warning("request %s: %s (%r)", g.request_id, error.problem.code, error.__cause__)
    return _render(error.problem)


async def _render_http_exception(gateway: Gateway, error: HTTPException) -> Response:
    response = _render(_problem_of(error, gateway.settings.max_body))
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


def _problem_of(error: HTTPException, max_body: int) -> Problem:
    match error.code:
        case 404:
            return problems.not_found()
        case 405:
            return problems.method_not_allowed()
        case 408:
            return problems.request_timeout()
        case 413:
            return problems.request_too_large(max_body)
        case code if code is not None and 400 <= code < 500:
            return problems.invalid_request("The request cannot be understood.")
    return problems.internal_error()


def _render(problem: Problem) -> Response:
    envelope = problem.anthropic() if request.path.startswith("/v1/messages") else problem.openai()
    response = _json({**envelope, "request_id": g.request_id}, problem.status)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    return response
