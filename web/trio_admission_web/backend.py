"""One llama-server by its name: its HTTP client, its pool, and what it has said of itself."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import SlotPool

from .condition import Condition, State
from .probing import ask, busy_slots, look, model_entries
from .upstream import Upstream

if TYPE_CHECKING:
    from trio_admission import AdmissionConfig, ParkBudget

    from .probing import Props
    from .settings import BackendSettings
    from .upstream import Network

log: Final = logging.getLogger(__name__)

# Between two looks at a server that serves, and the first and the longest at one that does not.
_USUAL_PAUSE: Final = 10.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
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
        self.condition = Condition(self.pool, settings.away_limit)
        self.context: int | None = None
        """Tokens that one sequence may have, if the server has said so."""
        self._configured = settings.slots
        self._has_line = admission.enabled
        self._looking = trio.Lock()
        self._settling: dict[trio.CancelScope, int] = {}  # -> its slots
        self._looks = 0
        self._looked_at = -math.inf
        self._busy: frozenset[int] = frozenset()
        self._hurried = False
        self._said: dict[str, str] = {}  # the last line in the log, by what it is about

    async def watch(self) -> None:
        """Look at the server again and again, for ever: at once when it is doubted.

        Blocks for ever. A server that serves is looked at every 10 s, any other at least every 5 s.
        """
        pause = _FIRST_PAUSE
        while True:
            await self.look()
            pause = _USUAL_PAUSE if self.condition.serves else min(2 * pause, _LONGEST_PAUSE)
            with trio.move_on_after(pause):
                await self.condition.doubted()
                pause = _FIRST_PAUSE

    async def look(self) -> State:
        """Ask the server what it does, and let that hold or release the line. Blocks for a few seconds."""
        held = self.pool.statistics().held
        state, heard, props = await look(self.upstream, at_slots=held > 0)
        if props is not None:
            self._take(props)
        self._note("state", logging.INFO if state.serves else logging.WARNING, f"is {state.value}: {heard}")
        self.condition.found(state)
        return state

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
            self._settling[scope] = slots
            await trio.sleep(_NOTICE)
            while await self._is_busy_beyond_leases():
                pass
        del self._settling[scope]

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
        return model_entries((await ask(self.upstream, "/v1/models")).value)

    def _take(self, props: Props) -> None:
        self.context = props.context or self.context
        now = self.pool.statistics().slots
        slots = props.slots or self._configured or 1
        used = min(slots, self._configured or slots) if props.is_answer else now
        if props.slots is None:
            news = f"does not say how many slots it has: /props {props.how}; using {used}"
            self._note("slots", logging.WARNING, news)
        elif slots < (self._configured or 0):
            news = f"has {slots} slots, not the {self._configured} configured"
            self._note("slots", logging.WARNING, news)
        else:
            self._note("slots", logging.INFO, f"has {slots} slots, of which {used} are used")
        if used != now:
            self.pool.resize(slots=used)

    async def _is_busy_beyond_leases(self) -> bool:
        """Whether more slots are busy than are held by those who are not in `settled`."""
        before = self._looks
        async with self._looking:
            if self._looks == before:  # else somebody has begun to look since, for all who wait here
                await trio.sleep_until(self._looked_at + _BETWEEN_LOOKS)
                self._looks += 1
                self._looked_at = trio.current_time()
                self._busy = await busy_slots(self.upstream)
        return len(self._busy) > self.pool.statistics().held - sum(self._settling.values())

    def _note(self, topic: str, level: int, news: str) -> None:
        """Log it, unless it is what was said last of this."""
        if self._said.get(topic) != news:
            self._said[topic] = news
            log.log(level, "backend %s %s", self.name, news)
