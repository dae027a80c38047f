"""The server's own refusals, in its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http import HTTPStatus

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """A refusal or failure as llama-server words it; `body` is its JSON, `detail` the object inside."""

    def __init__(self, status: HTTPStatus | int, message: str, kind: str | None = None, **facts: int) -> None:
        super().__init__(status, message)
        self.status = int(status)
        self.detail: dict[str, Any] = {
            "code": self.status,
            "message": message,
            "type": kind or _TYPES[self.status],
            **facts,
        }

    @property
    def body(self) -> dict[str, Any]:
        """The whole JSON body."""
        return {"error": self.detail}


CONTEXT_EXCEEDED = ApiError(500, "Context size has been exceeded.")
LOADING = ApiError(503, "Loading model")
NOT_FOUND = ApiError(404, "File Not Found")
UNAUTHORIZED = ApiError(401, "Invalid API Key")
NO_SLOT = ApiError(503, "no slot available")
NO_RERANKING = ApiError(501, "This server does not support reranking. Start it with `--reranking`")
NO_INFILL = ApiError(501, "Infill is not supported by this model: prefix token is missing. ")
NO_EMBEDDINGS = ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")


def prompt_too_long(tokens: int, n_ctx: int) -> ApiError:
    """Return the refusal of a prompt that fits in no slot."""
    return ApiError(
        400,
        f"request ({tokens} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it",
        "exceed_context_size_error",
        n_prompt_tokens=tokens,
        n_ctx=n_ctx,
    )
