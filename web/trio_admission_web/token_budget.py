"""What a request takes of a backend's KV cache, found out before it takes a place in the line.

When the sequences share one cache ("unified") and it runs out, every request in flight fails. So each request
is charged its prompt and all that it may generate, and the pool keeps the sum within the cache. With a cache
for each slot ("isolated") only the prompt matters: it fits into a slot, or never will.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import trio

from trio_admission import Cost

from .probing import read_json
from .problems import ProblemError

if TYPE_CHECKING:
    from .settings import BackendSettings
    from .upstream import Upstream
    from .wire.exchange import Exchange

# Counting takes a fraction of a second, even of a long prompt beside others that decode.
_PATIENCE: Final = 5.0
_LEAST_OUTPUT: Final = 512
# Tokens that a chat template may add to what the body says.
_TEMPLATE: Final = 256
# English and code have three to five bytes a token; other scripts have fewer.
_BYTES_PER_TOKEN: Final = 3
_JSON: Final = ((b"content-type", b"application/json"),)


class TooLongError(Exception):
    """Raised for a prompt that no slot can hold. ``body`` is what llama-server would answer, with 400."""

    def __init__(self, tokens: int, context: int) -> None:
        super().__init__(tokens, context)
        message = (
            f"request ({tokens} tokens) exceeds the available context size ({context} tokens), "
            "try increasing it"
        )
        error = {
            "code": 400,
            "message": message,
            "type": "exceed_context_size_error",
            "n_prompt_tokens": tokens,
            "n_ctx": context,
        }
        self.body = json.dumps({"error": error}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request is charged.

    Args:
        cost: For the pool.
        is_estimate: Whether its tokens were guessed from the length of the request.
    """

    cost: Cost
    is_estimate: bool = False


@final
class TokenBudget:
    """Weighs the requests for one backend.

    Args:
        settings: The backend's.
        upstream: Where tokens are counted.
        is_kept: Whether requests are charged tokens.
    """

    def __init__(self, settings: BackendSettings, upstream: Upstream, *, is_kept: bool) -> None:
        self._default = settings.default_output_tokens
        self._upstream = upstream
        self.is_kept = is_kept

    async def weigh(self, exchange: Exchange, *, slots: int, context: int | None, can_ask: bool) -> Charge:
        """Return what a request is to be charged; with a budget, also limit its output to that.

        Asks the server to count when that can matter, which blocks for 5 s at most. When it cannot be asked,
        the charge is an estimate.

        Args:
            exchange: The request.
            slots: How many the backend has.
            context: Tokens that one sequence may have; None if the server has not said so.
            can_ask: Whether it can be asked now.

        Raises:
            TooLongError: No slot can hold the prompt.
        """
        # No tokenizer makes more tokens than bytes, and of so few every slot may have that many at once.
        most = len(exchange.upstream_body) + _TEMPLATE
        is_small = context is not None and most < (context // slots if self.is_kept else context)
        count = None
        if not is_small and can_ask and (context is not None or self.is_kept):
            count = await self._count(exchange)
        if count is not None and context is not None and count >= context:
            raise TooLongError(count, context)
        if not self.is_kept:
            return Charge(Cost(slots=exchange.slots))
        prompt = most if is_small else most // _BYTES_PER_TOKEN if count is None else count
        if exchange.output_limit is None:
            share = (context or 0) // slots - prompt
            exchange.limit_output(self._default or max(share, _LEAST_OUTPUT))
        tokens = prompt + (exchange.output_limit or 0)
        if context is not None:
            tokens = min(tokens, context)
        return Charge(
            Cost(slots=exchange.slots, tokens=exchange.slots * tokens), not is_small and count is None
        )

    async def _count(self, exchange: Exchange) -> int | None:
        question = exchange.count
        if question is None:
            return None
        path, body = question
        with trio.move_on_after(_PATIENCE):
            try:
                answer = await self._upstream.fetch("POST", path, headers=_JSON, body=body)
            except ProblemError:
                return None
            return _read_count(answer.body) if answer.status == 200 else None
        return None


def _read_count(body: bytes) -> int | None:
    """Return the number of tokens that an answer to `Exchange.count` states; None if it states none."""
    said = read_json(body)
    if not isinstance(said, dict):
        return None
    tokens, count = said.get("tokens"), said.get("input_tokens")
    if isinstance(tokens, list):
        return len(tokens)
    return count if type(count) is int and count >= 0 else None
