"""Chat completions, completions, and the server's own completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .dialect import CREATED, FINGERPRINT, Dialect, Said, chat_prompt, event, timings_body
from .errors import ApiError
from .script import Kind

if TYPE_CHECKING:
    from .results import Ended, Timings, Token


class ChatCompletion(Dialect):
    """`/v1/chat/completions`."""

    limits: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens", "n_predict")
    terminal: ClassVar[bytes] = event("[DONE]")

    def read_prompts(self) -> list[str]:
        """Return the conversation as one prompt."""
        return [chat_prompt(self.body.get("messages"), self.body.get("tools"), vision=self.facts.vision)]

    def begin(self, index: int, timings: Timings) -> bytes:  # noqa: ARG002 (they come at the end)
        """Return the chunk of the role."""
        return self._chunk(index, {"role": "assistant", "content": None})

    def token(self, token: Token) -> bytes:
        """Return the token's chunk."""
        piece = token.piece
        match piece.kind:
            case Kind.REASONING:
                delta: dict[str, Any] = {"reasoning_content": piece.text}
            case Kind.TEXT:
                delta = {"content": piece.text}
            case Kind.CALL:
                call: dict[str, Any] = {"index": piece.call, "function": {"arguments": piece.text}}
                if piece.name:
                    function = {"name": piece.name, "arguments": piece.text}
                    call = {"index": piece.call, "id": self._call_id(piece.call), "type": "function"}
                    call["function"] = function
                delta = {"tool_calls": [call]}
        choice = {"logprobs": _logprobs([piece.text])} if self.body.get("logprobs") else {}
        extra = {"timings": timings_body(token.timings)} if self.body.get("timings_per_token") else {}
        return self._chunk(token.index, delta, choice, **extra)

    def end(self, index: int, said: Said) -> bytes:
        """Return the chunk with the finish reason, and that with the usage if it was asked for."""
        timings = timings_body(said.outcome.timings)
        options = self.body.get("stream_options")
        if not (isinstance(options, dict) and options.get("include_usage")):
            return self._chunk(index, {}, {"finish_reason": said.finish}, timings=timings)
        finish = self._chunk(index, {}, {"finish_reason": said.finish})
        usage = {
            **self._head("chat.completion.chunk"),
            "usage": _usage(said.outcome.timings),
            "timings": timings,
        }
        return finish + event({"choices": [], **usage})

    def answer(self) -> Any:
        """Return the chat completion."""
        choices = []
        for index, said in sorted(self.said.items()):
            message: dict[str, Any] = {"role": "assistant", "content": said.text(Kind.TEXT)}
            if thought := said.text(Kind.REASONING):
                message["reasoning_content"] = thought
            if calls := said.calls():
                message["tool_calls"] = [
                    {
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                        "id": self._call_id(number),
                    }
                    for number, (name, arguments) in enumerate(calls)
                ]
            choice = {"finish_reason": said.finish, "index": index, "message": message}
            if self.body.get("logprobs"):
                choice["logprobs"] = _logprobs([piece.text for piece in said.pieces])
            choices.append(choice)
        timings = self.said[0].outcome.timings
        head = self._head("chat.completion")
        return {"choices": choices, **head, "usage": _usage(timings), "timings": timings_body(timings)}

    def _call_id(self, number: int) -> str:
        return self.identifier("", number)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "created": CREATED,
            "id": self.identifier("chatcmpl-"),
            "model": self.facts.model,
            "system_fingerprint": FINGERPRINT,
            "object": kind,
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], choice: dict[str, Any] | None = None, **extra: Any
    ) -> bytes:
        choices = [{"finish_reason": None, "index": index, "delta": delta, **(choice or {})}]
        return event({"choices": choices, **self._head("chat.completion.chunk"), **extra})


class _Texts(Dialect):
    """What `/v1/completions` and `/completion` share: a prompt as text, as tokens, or several of them."""

    def read_prompts(self) -> list[str]:
        """Return each prompt."""
        if (prompt := self.body.get("prompt")) is None:
            raise ApiError(400, "[json.exception.out_of_range.403] key 'prompt' not found")
        return several_prompts(prompt)


class Completion(_Texts):
    """`/v1/completions`."""

    terminal: ClassVar[bytes] = event("[DONE]")

    def token(self, token: Token) -> bytes:
        """Return the token's chunk."""
        logprobs = _logprobs([token.piece.text]) if self.body.get("logprobs") else None
        return event(self._body([_text_choice(token.index, token.piece.text, None, logprobs)]))

    def end(self, index: int, said: Said) -> bytes:
        """Return the chunk with finish reason, usage and timings."""
        return event(self._body([_text_choice(index, "", said.finish, None)], said.outcome.timings))

    def answer(self) -> Any:
        """Return the text completion."""
        choices = []
        for index, said in sorted(self.said.items()):
            spoken = [piece.text for piece in said.pieces]
            logprobs = _logprobs(spoken) if self.body.get("logprobs") else None
            choices.append(_text_choice(index, "".join(spoken), said.finish, logprobs))
        return self._body(choices, self.said[0].outcome.timings)

    def _body(self, choices: list[dict[str, Any]], timings: Timings | None = None) -> dict[str, Any]:
        head = {
            "created": CREATED,
            "model": self.facts.model,
            "system_fingerprint": FINGERPRINT,
            "object": "text_completion",
        }
        if timings is None:
            return {"choices": choices, **head, "id": self.identifier("chatcmpl-")}
        identifier = {"id": self.identifier("chatcmpl-"), "timings": timings_body(timings)}
        return {"choices": choices, **head, "usage": _usage(timings), **identifier}


class NativeCompletion(_Texts):
    """`/completion`: no `[DONE]`, and the slot is told."""

    limits: ClassVar[tuple[str, ...]] = ("n_predict", "max_tokens")

    def token(self, token: Token) -> bytes:
        """Return the token's object."""
        timings = token.timings
        return event({
            "index": token.index,
            "content": token.piece.text,
            "tokens": [timings.predicted_n],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": timings.predicted_n,
            "tokens_evaluated": timings.prompt_n + timings.cache_n,
        })

    def end(self, index: int, said: Said) -> bytes:
        """Return the final object, without the text."""
        return event(self._final(index, said.outcome, ""))

    def answer(self) -> Any:
        """Return the final object, a list of them for several prompts."""
        finals = [
            self._final(index, said.outcome, said.text(Kind.TEXT))
            for index, said in sorted(self.said.items())
        ]
        return finals if len(finals) > 1 else finals[0]

    def _final(self, index: int, outcome: Ended, text: str) -> dict[str, Any]:
        timings = outcome.timings
        prompt = timings.prompt_n + timings.cache_n
        return {
            "index": index,
            "content": text,
            "tokens": [],
            "id_slot": outcome.slot,
            "stop": True,
            "model": self.facts.model,
            "tokens_predicted": timings.predicted_n,
            "tokens_evaluated": prompt,
            "generation_settings": {
                "n_predict": -1 if self.limit is None else self.limit,
                "stream": self.stream,
            },
            "prompt": self.prompts[index // self.copies],
            "has_new_line": "\n" in text,
            "truncated": False,
            "stop_type": "limit" if outcome.truncated else "eos",
            "stopping_word": "",
            "tokens_cached": prompt + timings.predicted_n - 1,
            "timings": timings_body(timings),
        }


class Infill(NativeCompletion):
    """`/infill`."""

    def read_prompts(self) -> list[str]:
        """Return what stands before and behind the gap."""
        for name in ("input_prefix", "input_suffix"):
            if name not in self.body:
                raise ApiError(400, f'"{name}" is required')
        return [f"{self.body['input_prefix']}<|gap|>{self.body['input_suffix']}"]


def several_prompts(given: Any) -> list[str]:
    """Return each of several prompts as text: one string, one list of token ids, or a list of either."""
    several = isinstance(given, list) and bool(given) and all(isinstance(one, str | list) for one in given)
    return [_prompt_text(one) for one in given] if several else [_prompt_text(given)]


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, list):  # token ids: any text of so many tokens serves
        return "".join(f" t{token}" for token in prompt)
    return str(prompt)


def _text_choice(index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}


def _logprobs(texts: list[str]) -> dict[str, Any]:
    content = []
    for number, text in enumerate(texts):
        entry = {"id": number, "token": text, "bytes": list(text.encode()), "logprob": -0.5}
        content.append({**entry, "top_logprobs": [entry]})
    return {"content": content}


def _usage(timings: Timings) -> dict[str, Any]:
    prompt = timings.prompt_n + timings.cache_n
    return {
        "completion_tokens": timings.predicted_n,
        "prompt_tokens": prompt,
        "total_tokens": prompt + timings.predicted_n,
        "prompt_tokens_details": {"cached_tokens": timings.cache_n},
    }
