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

    async def listed_models(self) -> list[dict[str, object]]:
        """Return its entries for the list of models: those configured, else what it says.

        Blocks for 2 s at most.
        """
        if self.models:
            return [{"id": name, "object": "model", "owned_by": "llamacpp"} for name in self.models]
        _, said = await self._ask("/v1/models")
        data = said.get("data")
        entries = data if isinstance(data, list) else []
        return [each for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]

    async def _total_slots(self) -> int | None:
        outcome, said = await self._ask("/props")
        slots = said.get("total_slots")
        if type(slots) is int and slots >= 1:
            return slots
        used = self.pool.statistics().slots
        self._note(logging.WARNING, f"does not say how many slots it has: /props {outcome}; using {used}")
        return None

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


def _json_object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
