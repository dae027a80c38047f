"""llama-server's own completions: `/completion` and `/infill`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trio_admission_web.problems import ProblemError, bad_gateway

from .body import count_inputs, read_choices, read_flag, read_limit, read_object, read_text, require
from .choices import LIMITS
from .counting import count_prompt
from .offer import for_upstream, read_conversation
from .streamed import CUT, Streamed, dump

if TYPE_CHECKING:
    from trio_admission_web.problems import Problem


class Completion(Streamed):
    """A completion of one or several prompts; see `Exchange`.

    Its stream has no last event of its own: it ends when each of its answers has ended.
    """

    path = "/completion"
    _limits = ("n_predict", *LIMITS)
    _mark = b'"stop":true'
    _needs: tuple[str, ...] = ("prompt",)

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        body = read_object(raw)
        for name in self._needs:
            require(body, name)
        self.model = read_text(body, "model")
        self.stream = read_flag(body, "stream")
        self.slots = count_inputs(body.get("prompt")) * read_choices(body)
        self._prompt = body.get("prompt")
        self.output_limit = read_limit(body, *LIMITS)
        self._fields = _read_response_fields(body)
        self._return_tokens = body.get("return_tokens") is True
        # An answer can be put together only from whole events, so the gateway picks the fields itself.
        as_stream = {"stream": b"true", "response_fields": None}
        self.conversation = read_conversation(body)
        self.can_be_pinned = self.slots == 1
        self.upstream_body = for_upstream(raw, body, {} if self.stream else as_stream)
        if self._fields:
            self._mark = b"data"  # `stop` may be one of the fields that the last event does not have
        self._unended = self.slots
        self._answers: dict[int, _Answer] = {}

    @property
    def count(self) -> tuple[str, bytes] | None:
        """See `Exchange.count`."""
        return count_prompt(self._prompt)

    def error_event(self, problem: Problem) -> bytes:
        """See `Exchange.error_event`."""
        return b"data: " + dump(problem.openai()) + b"\n\n"

    def _fail(self, failure: Problem, event: bytes | None) -> bytes:
        translated = super()._fail(failure, event)
        return translated if event is None else event

    def _is_last(self, data: bytes, chunk: dict[str, Any]) -> bool:  # noqa: ARG002
        if chunk and chunk.get("stop") is not False:  # which only the events before an answer's last say
            self._unended -= 1
        return self._unended == 0

    def _fold(self, chunk: dict[str, Any]) -> None:
        if "prompt_progress" not in chunk:  # tells of the way, not of the answer
            self._answers.setdefault(chunk["index"], _Answer()).fold(chunk)

    def _assemble(self) -> object:
        if len(self._answers) != self.slots:
            raise ProblemError(bad_gateway())
        answers = [self._answers[index].assemble(self._return_tokens) for index in sorted(self._answers)]
        if self._fields:
            answers = [_pick(answer, self._fields) for answer in answers]
        return answers if len(answers) > 1 else answers[0]


class Infill(Completion):
    """Code to fill in between a prefix and a suffix; see `Exchange`."""

    path = "/infill"
    _needs = ("input_prefix", "input_suffix")


class _Answer:
    """The answer to one prompt, as far as it has come."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self._told: int | None = 0  # tokens, before the last event
        self._content: list[str] = []
        self._tokens: list[int] = []
        self._probabilities: list[Any] = []

    def fold(self, chunk: dict[str, Any]) -> None:
        self._content.append(chunk.pop("content"))
        self._tokens += chunk.pop("tokens")
        self._probabilities += chunk.pop("completion_probabilities", ())
        self._told = self._last.get("tokens_predicted") if self._last else 0
        self._last = chunk

    def assemble(self, return_tokens: bool) -> dict[str, Any]:  # noqa: FBT001
        tokens = self._tokens if return_tokens else []  # in a stream the server sends them always
        # Each whole character has an event before that of the end, which counts those tokens that have none.
        cut = self._told is not None and self._told < self._last.get("tokens_predicted", 0)
        content = "".join(self._content) + (CUT if cut else "")
        answer = {"index": 0, "content": content, "tokens": tokens, **self._last}
        if self._probabilities:
            answer["completion_probabilities"] = self._probabilities
        if isinstance(settings := answer.get("generation_settings"), dict) and "stream" in settings:
            settings["stream"] = False  # as the client asked for it
        return answer


def _read_response_fields(body: dict[str, Any]) -> list[str]:
    fields = body.get("response_fields")
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        return []  # the server takes it for not set
    return fields


def _pick(answer: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """The members of an answer that `response_fields` names; a slash leads into an inner object."""
    picked = {}
    for field in fields:
        value: Any = answer
        for name in field.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            picked[field] = value
    return picked
