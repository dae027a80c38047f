"""One llama-server by its name: its HTTP client, its pool, and what it has said of itself."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import SlotPool

from .problems import ProblemError
from .upstream import Upstream

if TYPE_CHECKING:
    from trio_admission import AdmissionConfig, ParkBudget

    from .settings import BackendSettings
    from .upstream import Network

log: Final = logging.getLogger(__name__)

# A question about the server itself is answered in milliseconds, or something is wrong with it.
_PATIENCE: Final = 2.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
# llama-server notices a lost client at its next token, but a batch of a prompt it finishes first.
_NOTICE: Final = 0.15
# Asked more often, it would not notice that others have gone whose answer is not streamed.
_BETWEEN_LOOKS: Final = 2.0
_LONGEST_SETTLING: Final = 30.0


class Backend:
    """One llama-server.

    ``pool`` begins with the slots that were configured, or one, and is resized when the server says how
    many it has: never more requests go upstream than that, so the line is here and not in the server.
    """

    def __init__(
        self,
        settings: BackendSettings,
        admission: AdmissionConfig,
        network: Network = trio.open_tcp_stream,
        park_budget: ParkBudget | None = None,
    ) -> None:
        self.name = settings.name
        self.models = settings.models
        self.aliases = settings.aliases
        self.upstream = Upstream(settings, network)
        self.pool = SlotPool(
            settings.slots or 1,
            name=self.name,
            kv_tokens=settings.kv_tokens,
            config=admission,
            park_budget=park_budget,
        )
        self._configured = settings.slots
        self._has_line = admission.enabled
        self._settling: set[trio.CancelScope] = set()
        self._hurried = False
        self._said: dict[int, str] = {}  # level -> the last line in the log

    async def learn(self) -> None:
        """Ask the server for its number of slots until it has said one, and resize the pool to it.

        Blocks until then. Questions come at longer and longer intervals, at most 30 s.
        """
        pause = _FIRST_PAUSE
        while (slots := await self._total_slots()) is None:
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        if self._configured is not None and slots < self._configured:
            log.warning("backend %s has %d slots, not the %d configured", self.name, slots, self._configured)
        self.pool.resize(slots=min(slots, self._configured or slots))
        log.info("backend %s: %d of its %d slots are used", self.name, self.pool.statistics().slots, slots)

    async def ready(self) -> bool:
        """Ask the server whether it can work now. Blocks for 2 s at most."""
        outcome, said = await self._ask("/health")
        is_ready = said.get("status") == "ok"
        self._note(logging.INFO, f"is {'ready' if is_ready else 'not ready'}: /health {outcome}")
        return is_ready

    async def settled(self, slots: int) -> None:
        """Wait until the server no longer works on a request that was left before its end.

        Nothing but `hurry` interrupts that; it takes 30 s at most, and only as long as the server says that
        more slots are busy than others hold.

        Args:
            slots: How many the request had; its lease still holds them.
        """
        if self._hurried or not self._has_line:
            return  # without a line nobody is next, and nothing is held to compare with
        with trio.move_on_after(_LONGEST_SETTLING, shield=True) as scope:
            self._settling.add(scope)
            await trio.sleep(_NOTICE)
            while await self._is_busy_beyond(slots):  # noqa: ASYNC110 - another process is waited for
                await trio.sleep(_BETWEEN_LOOKS)
        self._settling.discard(scope)

    def hurry(self) -> None:
        """Let nobody wait in `settled` any more: this is the end of the gateway."""
        self._hurried = True
        for scope in self._settling:
            scope.cancel()

    async def listed_models(self) -> list[dict[str, object]]:
        """Return its entries for the list of models: those configured, else what it says.

        Blocks for 2 s at most.
        """
        if self.models:
            return [{"id": name, "object": "model", "owned_by": "llamacpp"} for name in self.models]
        _, said = await self._ask("/v1/models")
        return _entries(said)

    async def _total_slots(self) -> int | None:
        outcome, said = await self._ask("/props")
        slots = said.get("total_slots")
        if type(slots) is int and slots >= 1:
            return slots
        used = self.pool.statistics().slots
        self._note(logging.WARNING, f"does not say how many slots it has: /props {outcome}; using {used}")
        return None

    async def _is_busy_beyond(self, slots: int) -> bool:
        """Whether more slots are busy than are held by others than the one who had so many."""
        busy = await self._busy_slots()
        return busy > self.pool.statistics().held - slots

    async def _busy_slots(self) -> int:
        """Count the slots that the server says are busy; 0 when it does not say."""
        with trio.move_on_after(_PATIENCE):
            try:
                answer = await self.upstream.fetch("GET", "/slots")
            except ProblemError:
                return 0
            slots = _json(answer.body) if answer.status == 200 else None
            if isinstance(slots, list):
                return sum(isinstance(each, dict) and each.get("is_processing") is True for each in slots)
        return 0

    async def _ask(self, path: str) -> tuple[str, dict[str, object]]:
        """Say how the question went, and return the JSON object of a good answer, else an empty one."""
        with trio.move_on_after(_PATIENCE):
            try:
                answer = await self.upstream.fetch("GET", path)
            except ProblemError:
                return "cannot be asked", {}
            return f"answers {answer.status}", _json_object(answer.body) if answer.status == 200 else {}
        return "takes too long", {}

    def _note(self, level: int, news: str) -> None:
        """Log it, unless it is what was said last at this level."""
        if self._said.get(level) != news:
            self._said[level] = news
            log.log(level, "backend %s %s", self.name, news)


def model_entries(body: bytes) -> list[dict[str, object]]:
    """Return the entries of a list of models that have an id."""
    return _entries(_json_object(body))


def _entries(said: dict[str, object]) -> list[dict[str, object]]:
    data = said.get("data")
    entries = data if isinstance(data, list) else []
    return [each for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _json_object(body: bytes) -> dict[str, object]:
    value = _json(body)
    return value if isinstance(value, dict) else {}
