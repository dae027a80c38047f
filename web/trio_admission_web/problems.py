"""One table of refusals and failures: cause -> status, type, code and sentence, for every dialect.

The sentences are for the client: they name what it can act on and nothing of the inside (no address, path,
class or exception text).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CODES = frozenset({
    "backend_unavailable", "bad_gateway", "cancelled", "draining", "flow_limit", "internal_error",
    "invalid_api_key", "invalid_request", "loop_detected", "method_not_allowed", "model_not_found",
    "not_found", "permission_denied", "queue_full", "queue_timeout", "request_timeout", "request_too_large",
    "upstream_timeout",
})  # fmt: skip
"""Every code that is the gateway's own. An error of the backend keeps the backend's word."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "api_error",
    505: "invalid_request_error",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused or failed, in the words of the HTTP API.

    Args:
        status: the HTTP status, also when the problem is told in-band.
        code: the cause, one word of a closed vocabulary; a problem of the upstream keeps the upstream's word.
        message: one sentence for the client.
        retry_after: seconds, for the `Retry-After` header.
        param: the body field that is wrong.
        facts: counts shown in the body, such as `waiting` and `slots`.
    """

    status: int
    code: str
    message: str
    retry_after: int | None = None
    param: str | None = None
    facts: Mapping[str, int] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The kind of error, the same word in both envelopes."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")

    def openai(self) -> dict[str, object]:
        """The error envelope of the OpenAI dialects."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**self.facts, **error}}

    def anthropic(self) -> dict[str, object]:
        """The error envelope of the Anthropic dialect."""
        error = {"type": self.type, "message": self.message, "code": self.code}
        return {"type": "error", "error": {**self.facts, **error}}


class ProblemError(Exception):
    """Raised where a request cannot go on; carries the `problem` that the client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.message


# ---- refused on arrival or while waiting


def queue_full(*, waiting: int, slots: int, retry_after: int) -> Problem:
    """The line in front of the backend holds its limit."""
    message = f"All {slots} slots are busy and the line is full ({waiting} waiting). Try again later."
    facts = {"waiting": waiting, "slots": slots}
    return Problem(429, "queue_full", message, retry_after=retry_after, facts=facts)


def flow_limit(*, waiting: int, limit: int, retry_after: int) -> Problem:
    """This key or user has as many requests waiting as it may have."""
    message = f"You have {waiting} requests waiting and may have {limit}. Try again later."
    facts = {"waiting": waiting, "limit": limit}
    return Problem(429, "flow_limit", message, retry_after=retry_after, facts=facts)


def request_limit(*, limit: int, retry_after: int) -> Problem:
    """This key has as many requests here, running or waiting, as it may have."""
    message = f"You may have {limit} request{'s' if limit > 1 else ''} at once. Try again later."
    return Problem(429, "flow_limit", message, retry_after=retry_after, facts={"limit": limit})


def queue_timeout(*, waiting: int, slots: int, retry_after: int) -> Problem:
    """The request waited as long as it may and was not admitted."""
    message = "No slot became free within the time that a request may wait. Try again later."
    facts = {"waiting": waiting, "slots": slots}
    return Problem(503, "queue_timeout", message, retry_after=retry_after, facts=facts)


def draining(*, retry_after: int) -> Problem:
    """The gateway is shutting down and takes no new requests."""
    return Problem(503, "draining", "The gateway is shutting down. Try again later.", retry_after=retry_after)


def backend_unavailable(*, retry_after: int, reason: str = "") -> Problem:
    """No backend is ready, maybe for a reason that somebody can do something about."""
    message = f"No backend is ready{reason and f': {reason}'}. Try again later."
    return Problem(503, "backend_unavailable", message, retry_after=retry_after)


def cancelled() -> Problem:
    """The request was cancelled by its id, not by its client going away."""
    return Problem(499, "cancelled", "The request was cancelled.")


# ---- the backend failed


def bad_gateway() -> Problem:
    """The backend reset, ended early or sent what is no answer."""
    return Problem(502, "bad_gateway", "The backend did not give a complete answer.")


def unreachable() -> Problem:
    """There is no way to connect to the backend."""
    return Problem(502, "bad_gateway", "The backend cannot be reached.")


def key_refused() -> Problem:
    """The backend wants a key, and the gateway has none or a wrong one. The client's own key is in order."""
    message = (
        "The server behind this gateway refuses the gateway's own key, not yours."
        " Who runs the gateway must set --upstream-api-key."
    )
    return Problem(502, "bad_gateway", message)


def loop_detected() -> Problem:
    """The request has come back to the gateway that has sent it on."""
    message = "This gateway is its own backend: an address in its configuration leads back to it."
    return Problem(508, "loop_detected", message)


def upstream_timeout() -> Problem:
    """The backend was too slow."""
    return Problem(504, "upstream_timeout", "The backend did not answer in time.")


def upstream_error(status: int, body: bytes) -> Problem:
    """Read the backend's own error, for where its bytes cannot be passed on as they are.

    Args:
        status: what the backend answered with, or 500 for an error in a stream. A status in the body wins.
        body: `{"error": {...}}`, `{"error": "sentence"}` or the inner object alone, as JSON. Anything else
            gives `bad_gateway`.
    """
    try:
        error = json.loads(body)
    except (ValueError, RecursionError):
        return bad_gateway()
    if isinstance(error, dict):
        error = error.get("error") or error
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return bad_gateway()
    code = error.get("code")
    if type(code) is int and 400 <= code <= 599:
        status = code
    word = next((w for w in (code, error.get("type")) if isinstance(w, str)), "upstream_error")
    param = error.get("param")
    return Problem(
        status,
        word,
        error["message"],
        param=param if isinstance(param, str) else None,
        facts={name: n for name, n in error.items() if type(n) is int and name != "code"},
    )


# ---- the request is wrong


def invalid_request(message: str, param: str | None = None) -> Problem:
    """The body is not JSON, or the field `param` is not what the API takes."""
    return Problem(400, "invalid_request", message, param=param)


def malformed(status: int) -> Problem:
    """What came is no request of HTTP; ``status`` is what HTTP has for it."""
    messages = {
        431: "The headers of the request are too long.",
        501: "The body must be sent as it is or in chunks.",
        505: "The request must be of HTTP/1.1 or HTTP/2.",
    }
    return Problem(status, "invalid_request", messages.get(status, "The request is not valid HTTP."))


def invalid_api_key() -> Problem:
    """No key, or not one that is known."""
    return Problem(401, "invalid_api_key", "A valid API key is required.")


def permission_denied() -> Problem:
    """The key is known and may not do this."""
    return Problem(403, "permission_denied", "This API key may not do that.")


def local_only() -> Problem:
    """No keys are configured, and the request came over an address that others can reach."""
    message = "This gateway has no API keys and serves its own machine only."
    return Problem(403, "permission_denied", message)


def model_not_found(model: str) -> Problem:
    """Several models are configured and this is none of them."""
    return Problem(404, "model_not_found", f"The model {model[:100]!r} does not exist.", param="model")


def not_found(hint: str = "") -> Problem:
    """There is no such route or object. ``hint`` is one more sentence."""
    return Problem(404, "not_found", f"There is nothing at this address. {hint}".rstrip())


def method_not_allowed() -> Problem:
    """The route exists and does not take this method."""
    return Problem(405, "method_not_allowed", "This address does not take that method.")


def request_timeout() -> Problem:
    """The body did not arrive in time."""
    return Problem(408, "request_timeout", "The request did not arrive in time.")


def request_too_large(limit: int) -> Problem:
    """The body is longer than `limit` bytes."""
    message = f"The request body is larger than {limit} bytes."
    return Problem(413, "request_too_large", message, facts={"limit": limit})


# ---- the gateway failed


def internal_error() -> Problem:
    """A fault of the gateway's own."""
    return Problem(500, "internal_error", "The gateway failed to handle this request.")
