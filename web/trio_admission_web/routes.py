"""Addresses -> exchanges: read a request, send it on its way, render what comes of it."""

from __future__ import annotations

import re
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import trio
from quart import Response, g, request
from quart.wrappers.response import ResponseBody
from werkzeug.exceptions import HTTPException

from . import problems
from .access import identify
from .arrival import Arrival
from .cors import add_cors
from .gateway import DRAIN_RETRY
from .logs import tell
from .operations import add_operations
from .passage import Origin, Passage
from .probing import model_entries, read_json
from .problems import ProblemError
from .relay import Relay
from .rendering import json_response, render_http_exception, render_problem, typed
from .resumes import HEADER
from .serving.connection import request_scope
from .toolbox import Toolbox, add_toolbox
from .upstream import OUR_NAME, VIA, passed_on
from .wire.body import read_object, read_text
from .wire.chat import Chat
from .wire.completions import Completions
from .wire.messages import Messages
from .wire.native import Completion, Infill
from .wire.responses import Responses
from .wire.unstreamed import Embeddings, NativeEmbeddings, Rerank

if TYPE_CHECKING:
    from collections.abc import Callable

    from quart_trio import QuartTrio

    from .backend import Backend
    from .gateway import Gateway
    from .upstream import Header, WholeAnswer
    from .wire.exchange import Exchange


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
NOT_ADMITTED: Final = (
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
)
MODELS: Final = ("/v1/models", "/models")

# Asked every few seconds by machines and by pages that show it: counted, not logged.
QUIET: Final = frozenset({"/health", "/ready", "/metrics", "/admission", "/admission/approvals"})
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_PARENT: Final = "admission-parent"
_STREAM_HEADERS: Final = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def add_routes(app: QuartTrio, gateway: Gateway) -> None:
    """Give the application every address that there is, and its way of telling errors."""
    toolbox = Toolbox(gateway.settings.tools, gateway.settings.approval_ttl)
    for path, exchange in ADMITTED.items():
        app.add_url_rule(path, path, partial(_admit, gateway, toolbox, exchange), methods=["POST"])
    for path in NOT_ADMITTED:
        app.add_url_rule(path, path, partial(_ask, gateway, path), methods=["POST"])
    for path in MODELS:
        app.add_url_rule(path, path, partial(_models, gateway))
        app.add_url_rule(f"{path}/<path:name>", f"{path}/name", partial(_model, gateway, path))
    add_operations(app, gateway)
    add_toolbox(app, toolbox)
    app.before_request(_name_request)
    app.before_request(_refuse_loops)
    app.before_request(_take_paths_literally)
    add_cors(app, gateway)
    app.before_request(partial(identify, gateway))
    app.before_request(_refuse_packed_bodies)
    app.after_request(_sign_response)
    app.teardown_request(partial(_tell, gateway))
    app.register_error_handler(ProblemError, render_problem)

    async def render(error: HTTPException) -> Response:
        return render_http_exception(error, gateway.settings.max_body)

    app.register_error_handler(HTTPException, render)


async def _admit(gateway: Gateway, toolbox: Toolbox, read: Callable[[bytes], Exchange]) -> Response:
    """Answer a request that makes the backend decode."""
    if gateway.draining:
        raise ProblemError(problems.draining(retry_after=DRAIN_RETRY))
    flow = g.key.flow if g.key is not None else ""
    exchange, turns = toolbox.read(read, await _body(gateway), request_id=g.request_id, flow=flow)
    resume = request.headers.get(HEADER)
    _check_model(gateway, exchange.model)
    backend = gateway.directory.choose(
        exchange.model,
        gateway.resumes.backend(resume),
        knows=lambda each: each.seats.knows(exchange, flow),
        crowd=gateway.crowd,
    )
    nursery = request_scope(request).nursery
    passage = Passage(
        gateway,
        backend,
        exchange,
        id=g.request_id,
        route=_route(),
        key=g.key,
        headers=_upstream_headers(),
        query=request.query_string,
        cut=nursery.cancel_scope.cancel,
        turns=turns,
        origin=_origin(gateway, backend, flow, resume),
    )
    g.passes = True
    nursery.start_soon(passage.run)
    answer = await passage.answer()
    if not isinstance(answer.body, Relay):
        return typed(Response(answer.body, answer.status, {**answer.headers}), answer.content_type)
    response = Response(_Drain(answer.body), answer.status, {**_STREAM_HEADERS, **answer.headers})
    response.timeout = None
    return typed(response, answer.content_type)


async def _ask(gateway: Gateway, path: str) -> Response:
    """Ask the backend at once, whoever waits, and pass its answer on as it is."""
    body = await _body(gateway)
    backend = gateway.backend
    if len(gateway.backends) > 1 or (g.key is not None and g.key.models is not None):
        model = read_text(read_object(body), "model")
        _check_model(gateway, model)
        backend = gateway.directory.choose(model)
    answer = await backend.fetch(
        "POST", path, headers=_upstream_headers(), query=request.query_string, body=body
    )
    return typed(Response(answer.body, answer.status, {**answer.headers}), answer.content_type)


async def _models(gateway: Gateway) -> Response:
    """List what all backends serve: as configured, else as the backend says.

    The only backend's own list is passed on as it is, unless the key may not use all of it.
    """
    if _has_own_list(gateway):
        answer = await _own_list(gateway, request.path)
        return typed(Response(answer.body, answer.status, {**answer.headers}), answer.content_type)
    return json_response({"object": "list", "data": await _common_list(gateway)})


async def _model(gateway: Gateway, path: str, name: str) -> Response:
    """Show one entry of the list; its id may have slashes and colons in it."""
    if _has_own_list(gateway):
        answer = await _own_list(gateway, path)
        if answer.status != 200:
            return typed(Response(answer.body, answer.status, {**answer.headers}), answer.content_type)
        entries = model_entries(read_json(answer.body))
    else:
        entries = await _common_list(gateway)
    found = next((each for each in entries if each["id"] == name), None)
    if found is None:
        raise ProblemError(problems.model_not_found(name))
    return json_response(found)


def _has_own_list(gateway: Gateway) -> bool:
    may_use_all = g.key is None or g.key.models is None
    return len(gateway.backends) == 1 and not gateway.directory.models and may_use_all


async def _own_list(gateway: Gateway, path: str) -> WholeAnswer:
    return await gateway.backend.fetch("GET", path, headers=_upstream_headers(), query=request.query_string)


async def _common_list(gateway: Gateway) -> list[dict[str, object]]:
    listed: dict[str, list[dict[str, object]]] = {}

    async def ask(backend: Backend) -> None:
        listed[backend.name] = await backend.listed_models(_upstream_headers())

    async with trio.open_nursery() as nursery:
        for backend in gateway.backends.values():
            nursery.start_soon(ask, backend)
    union: dict[str, dict[str, object]] = {}
    for name in gateway.backends:
        for model in listed[name]:
            union.setdefault(str(model["id"]), model)
    return [model for name, model in union.items() if g.key is None or g.key.may_use(name)]


def _origin(gateway: Gateway, backend: Backend, flow: str, resume: str | None) -> Origin:
    """Find what the request says that it follows from. What is wrong, stale or of another flow is ignored."""
    parent = request.headers.get(_PARENT)
    ticket = gateway.resumes.take(resume) if gateway.resumes.backend(resume) == backend.name else None
    leases = (each.lease for each in gateway.passages if each.id == parent and each.flow == flow)
    return Origin(ticket, next((lease for lease in leases if lease is not None), None))


def _check_model(gateway: Gateway, model: str | None) -> None:
    if g.key is not None and not g.key.may_use(gateway.directory.resolve(model)):
        raise ProblemError(problems.permission_denied())


class _Drain(ResponseBody):
    """A relay as Quart wants the body of a response."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def __aenter__(self) -> Relay:
        return self._relay

    async def __aexit__(self, *_: object) -> None:
        """Leave the relay to its passage, which ends with the request."""


async def _body(gateway: Gateway) -> bytes:
    # Not kept by the request: a body can be large, and its request may wait for long.
    read = partial(request.get_data, cache=False, as_text=False, parse_form_data=False)
    return await gateway.receive(Arrival(g.request_id, g.key.flow if g.key is not None else ""), read)


def _upstream_headers() -> list[Header]:
    headers = passed_on(request.scope["headers"])
    if not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    return [*headers, (b"x-request-id", g.request_id.encode())]


def _route() -> str:
    """The address as it is in the table of routes: what a client may say is not told to logs and metrics."""
    return request.url_rule.rule if request.url_rule is not None else "other"


async def _tell(gateway: Gateway, _error: BaseException | None) -> None:
    """Count and log a request that did not become a passage, which tells of itself."""
    if g.get("passes") or "arrived" not in g:
        return
    seconds, route = trio.current_time() - g.arrived, _route()
    answered = "answered" if g.get("status", 0) < 400 else "backend_error"
    outcome = g.get("outcome", answered) if "status" in g else gateway.outcome_of_cut
    gateway.metrics.ended(route, outcome, seconds)
    if route not in QUIET:
        tell(
            g.request_id,
            flow=g.key.flow if g.get("key") else "",
            route=route,
            duration=seconds,
            outcome=outcome,
        )


async def _name_request() -> None:
    g.arrived = trio.current_time()
    names = request.headers.getlist("X-Request-Id")
    sane = len(names) == 1 and _SANE_ID.fullmatch(names[0])
    g.request_id = names[0] if sane else uuid.uuid4().hex


async def _refuse_loops() -> None:
    # Before keys are looked at: the gateway does not know any for itself.
    names = ",".join(request.headers.getlist(VIA)).split(",")
    if OUR_NAME in {each.strip() for each in names}:
        raise ProblemError(problems.loop_detected())


async def _take_paths_literally() -> None:
    # Werkzeug serves `//metrics` and `metrics` as `/metrics`, past a proxy's rules for that address.
    path = request.scope["path"]
    if not path.startswith("/"):
        path = urlsplit(path).path  # of the absolute form
    if not path.startswith("/") or path.startswith("//"):
        raise ProblemError(problems.not_found())


async def _refuse_packed_bodies() -> None:
    # Nor would the backend unpack them: it answers an empty 415.
    codings = ",".join(request.headers.getlist("Content-Encoding")).split(",")
    if any(each.strip().lower() not in {"", "identity"} for each in codings):
        message = "The header Content-Encoding must be left out: bodies must be sent as they are."
        raise ProblemError(problems.invalid_request(message))


async def _sign_response(response: Response) -> Response:
    response.headers["X-Request-Id"] = g.request_id
    g.status = response.status_code
    return response
