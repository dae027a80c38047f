"""What a running server answers: which dialect or page belongs to which path."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import trio

from . import pages
from .dialect import Dialect, Facts, chat_prompt, read_object, tokenize
from .engine import Engine, Job
from .errors import LOADING, NO_EMBEDDINGS, NO_INFILL, NO_RERANKING, NOT_FOUND, UNAUTHORIZED, ApiError
from .exchange import Generation
from .messages import Message
from .openai import ChatCompletion, Completion, Infill, NativeCompletion
from .responses import Response
from .results import Result
from .vectors import Embeddings, NativeEmbeddings, Rerank

if TYPE_CHECKING:
    from collections.abc import Callable

    from .exchange import Exchange
    from .http import Request
    from .script import Script

_DECODING: dict[str, type[Dialect]] = {
    "/v1/chat/completions": ChatCompletion,
    "/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/completions": NativeCompletion,
    "/completion": NativeCompletion,
    "/infill": Infill,
    "/v1/responses": Response,
    "/responses": Response,
    "/v1/messages": Message,
    "/v1/embeddings": Embeddings,
    "/embeddings": NativeEmbeddings,
    "/embedding": NativeEmbeddings,
    "/v1/rerank": Rerank,
    "/rerank": Rerank,
}
_COUNTING: dict[str, type[Dialect]] = {
    "/v1/chat/completions/input_tokens": ChatCompletion,
    "/v1/responses/input_tokens": Response,
    "/v1/messages/count_tokens": Message,
}
_HEALTH = {"/health", "/v1/health"}


def decodes(request: Request) -> bool:
    """Whether the request makes the server decode."""
    return request.method == "POST" and request.path in _DECODING


class Site:
    """One life of the server, from its start to a crash."""

    def __init__(self, options: pages.Options, engine: Engine, saved: dict[str, list[str]]) -> None:
        self.engine = engine
        self._options = options
        self._saved = saved
        self._vocabulary: dict[str, int] = {}
        self._pages: dict[str, Callable[[Request], Any]] = {
            "GET /health": lambda _: {"status": "ok"},
            "GET /v1/health": lambda _: {"status": "ok"},
            "GET /props": lambda _: pages.props(options, engine),
            "GET /slots": lambda request: pages.slots(options, engine, request.query),
            "GET /models": lambda _: pages.models(options, engine),
            "GET /v1/models": lambda _: pages.models(options, engine),
            "POST /tokenize": self._tokenize,
            "POST /detokenize": self._detokenize,
            "POST /apply-template": self._apply_template,
            **{f"POST {path}": self._count for path in _COUNTING},
        }

    async def answer(self, exchange: Exchange, script: Script, left: Callable[[], None]) -> None:
        """Answer; `left` is called when the request is no longer in flight, before its client can know."""
        request = exchange.request
        route = f"{'GET' if request.method == 'HEAD' else request.method} {request.path}"
        try:
            self._let_in(request)
            if decodes(request):
                await self._generate(exchange, script, left)
            elif route in self._pages:
                await exchange.answer(200, self._pages[route](request))
            elif route == "GET /metrics":
                metrics = pages.metrics(self._options, self.engine)
                await exchange.answer(200, metrics, "text/plain; version=0.0.4")
            elif route.startswith("POST /slots/"):
                act = pages.slot_action(self._options, self.engine, self._saved, request)
                await exchange.answer(200, await act)
            else:
                raise NOT_FOUND
        except ApiError as error:
            left()
            await exchange.answer(error.status, error.body)

    def _let_in(self, request: Request) -> None:
        options = self._options
        if options.api_key is not None and request.path not in _HEALTH:
            given = request.header("X-Api-Key") or (request.header("Authorization") or "")
            if given.removeprefix("Bearer ") != options.api_key:
                raise UNAUTHORIZED
        if options.loading:
            raise LOADING

    def _facts(self, number: int) -> Facts:
        return Facts(number, self._options.model, len(self.engine.slots), vision=self._options.vision)

    def _count(self, request: Request) -> dict[str, Any]:
        dialect = _COUNTING[request.path](read_object(request.body), self._facts(0))
        counted = {"input_tokens": len(tokenize(dialect.prompts[0]))}
        return counted if "count_tokens" in request.path else {**counted, "object": "response.input_tokens"}

    def _tokenize(self, request: Request) -> dict[str, Any]:
        body = read_object(request.body)
        words = tokenize(str(body.get("content", "")))
        tokens = [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in words]
        if not body.get("with_pieces"):
            return {"tokens": tokens}
        return {"tokens": [{"id": token, "piece": word} for token, word in zip(tokens, words, strict=True)]}

    def _detokenize(self, request: Request) -> dict[str, Any]:
        words = list(self._vocabulary)
        tokens = read_object(request.body).get("tokens")
        known = [one for one in tokens if one in range(len(words))] if isinstance(tokens, list) else []
        return {"content": "".join(words[one] for one in known)}

    def _apply_template(self, request: Request) -> dict[str, Any]:
        body = read_object(request.body)
        return {"prompt": chat_prompt(body.get("messages"), body.get("tools"), vision=self._options.vision)}

    async def _generate(self, exchange: Exchange, script: Script, left: Callable[[], None]) -> None:
        request, options = exchange.request, self._options
        kind = _DECODING[request.path]
        _check_enabled(kind, options)
        dialect = kind(read_object(request.body), self._facts(request.number))
        send, results = trio.open_memory_channel[Result | None](math.inf)
        remaining = len(dialect.prompts)

        def job_left() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                left()

        jobs = [self._job(request, script, dialect, at, send, job_left) for at in range(remaining)]
        exchange.wire.on_gone = lambda: send.send_nowait(None)
        try:
            for job in jobs:
                self.engine.submit(job)
            generation = Generation(exchange, self.engine, dialect, script, results, options.ping_interval)
            await generation.run(len(jobs) * dialect.copies)
        except ApiError as error:
            await exchange.answer(error.status, error.body)
        finally:
            exchange.wire.on_gone = None
            for job in jobs:
                self.engine.cancel(job)

    def _job(
        self,
        request: Request,
        script: Script,
        dialect: Dialect,
        number: int,
        results: trio.MemorySendChannel[Result | None],
        left: Callable[[], None],
    ) -> Job:
        first, options = number * dialect.copies, self._options
        indexes = range(first, first + dialect.copies)
        labels = [f"r{request.number}c{index}" if index else f"r{request.number}" for index in indexes]
        return Job(
            request=request,
            prompt=tokenize(dialect.prompts[number]),
            sequences=[script.pieces(one, options.words) if dialect.speaks else iter(()) for one in labels],
            first_index=first,
            limit=dialect.limit,
            pin=dialect.pin,
            prefill=options.prefill if script.prefill is None else script.prefill,
            interval=options.interval if script.interval is None else script.interval,
            pauses=script.pauses,
            cut=script.cut,
            streaming=dialect.stream,
            results=results,
            left=left,
        )


def _check_enabled(kind: type[Dialect], options: pages.Options) -> None:
    if issubclass(kind, Embeddings) and not options.embeddings:
        raise NO_EMBEDDINGS
    if kind is Rerank and not options.reranking:
        raise NO_RERANKING
    if kind is Infill and not options.infill:
        raise NO_INFILL
