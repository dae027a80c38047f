"""Answers and problems -> responses."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from quart import Response, g, request

from . import problems

if TYPE_CHECKING:
    from werkzeug.exceptions import HTTPException

    from .problems import Problem, ProblemError

log: Final = logging.getLogger(__name__)

# For somebody who opens in a browser what the launcher has printed.
_WHERE_TO_GO: Final = "The API is at /v1, such as /v1/chat/completions; /admission shows slots and line."


def json_response(value: dict[str, object], status: int = 200) -> Response:
    """Make a response of JSON."""
    return Response(json.dumps(value), status, content_type="application/json")


def typed(response: Response, content_type: bytes | None) -> Response:
    """Give the response the content type that the backend gave, or none."""
    if content_type is None:
        del response.headers["Content-Type"]
    else:
        response.headers["Content-Type"] = content_type.decode("latin-1")
    return response


async def render_problem(error: ProblemError) -> Response:
    """Tell the client of a problem."""
    if error.__cause__ is not None:
        log.warning("request %s: %s (%s)", g.request_id, error.problem.code, type(error.__cause__).__name__)
    return _render(error.problem)


def render_http_exception(error: HTTPException, max_body: int) -> Response:
    """Tell the client of an error of Quart's, in the gateway's words."""
    response = _render(_problem_of(error, max_body))
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


def _problem_of(error: HTTPException, max_body: int) -> Problem:
    match error.code:
        case 404:
            return problems.not_found(_WHERE_TO_GO)
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
    g.outcome = problem.code if problem.code in problems.CODES else "backend_error"
    response = json_response({**envelope, "request_id": g.request_id}, problem.status)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
