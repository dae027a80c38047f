"""OpenAI text completions: `/v1/completions`."""

from __future__ import annotations

from typing import Any

from .body import (
    count_inputs,
    read_choices,
    read_count,
    read_flag,
    read_limit,
    read_object,
    read_text,
    require,
)
from .choices import AS_STREAM, LIMITS, Choice, Choices
from .counting import count_prompt
from .offer import for_upstream, read_conversation
from .streamed import CUT


class Completions(Choices):
    """A text completion of one or several prompts; see `Exchange`.

    In one piece the server ends a text with U+FFFD when the limit has cut its last character. Of that, events
    say nothing, so it is missing here, unless it is all that there is.
    """

    path = "/v1/completions"
    _limits = LIMITS
    _object = "text_completion"

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        prompts = count_inputs(require(body, "prompt"))
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.slots = prompts * max(read_choices(body), read_count(body, "best_of"))
        self._prompt = body["prompt"]
        self.output_limit = read_limit(body, *LIMITS)
        self.conversation = read_conversation(body)
        self.can_be_pinned = self.slots == 1
        self.upstream_body = for_upstream(raw, body, {} if self.stream else AS_STREAM)

    @property
    def count(self) -> tuple[str, bytes] | None:
        """See `Exchange.count`."""
        return count_prompt(self._prompt)

    def _new_choice(self) -> Choice:
        return _TextChoice()


class _TextChoice(Choice):
    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[str] = []

    def fold(self, part: dict[str, Any]) -> None:
        self._pieces.append(part.pop("text"))
        super().fold(part)

    def assemble(self) -> dict[str, Any]:
        # Each whole character has an event before that of the end.
        text = "".join(self._pieces) if self._pieces != [""] else CUT
        return self._members | {"text": text, "logprobs": self._logprobs or None}
