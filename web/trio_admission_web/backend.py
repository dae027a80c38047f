"""One llama-server by its name: its HTTP client, its pool, and what it has said of itself."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from tempfile import gettempdir
from typing import TYPE_CHECKING, Final

import trio

from trio_admission import SlotPool

from .condition import AWAY_RETRY, Condition, State
from .probing import ask, busy_slots, look, model_entries
from .problems import ProblemError, backend_unavailable
from .seats import Seats
from .supervision import USUAL, starter, supervise
from .token_budget import TokenBudget
from .upstream import OUR_NAME, Upstream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio_admission import AdmissionConfig, ParkBudget

    from .probing import Props
    from .settings import BackendSettings
    from .supervision import Patience
    from .token_budget import Charge
    from .upstream import Header, Network, WholeAnswer
    from .wire.exchange import Exchange

log: Final = logging.getLogger(__name__)

# Between two looks at a server that serves, and the first and the longest at one that does not.
_USUAL_PAUSE: Final = 10.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
# llama-server notices a lost client at its next token, but a batch of a prompt it finishes first. Asked at
# once, it could also not have begun with what is on its way to it.
_NOTICE: Final = 0.05
# Before the second look at a slot that is still busy, and the most before any later one: asked more often for
# long, it would not notice that others have gone whose answer is not streamed.
_SECOND_LOOK: Final = 0.1
_LATER_LOOKS: Final = 2.0
# However many leave, there is one look at a time and so much between two.
_BETWEEN_LOOKS: Final = 0.1
_LONGEST_SETTLING: Final = 30.0


class Backend:
    """One llama-server.

    ``pool`` begins with the slots that were configured, or one, and is resized when the server says how
    many it has: never more requests go upstream than that, so the line is here and not in the server.

    Args:
        settings: What is configured.
        admission: The settings of its pool.
        network: Opens connections, by host and port; a test may have something else than TCP.
        park_budget: Shared with other pools; None = the library's default one.
        progress: Gets a line for each step in the start of a server that is ours; None = they are logged.
        patience: When a server of ours is started again.

    Raises:
        EngineError: There is no such program or model to start.
    """

    def __init__(
        self,
        settings: BackendSettings,
        admission: AdmissionConfig,
        network: Network = trio.open_tcp_stream,
        park_budget: ParkBudget | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        patience: Patience = USUAL,
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.models = settings.models
        self.aliases = settings.aliases
        self.upstream = Upstream(settings, network, via=OUR_NAME)
        self.pool = SlotPool(
            settings.slots or 1,
            name=self.name,
            kv_tokens=settings.kv_tokens,
            config=admission,
            park_budget=park_budget,
        )
        self._own_files: Path | None = None
        if settings.gguf is not None and settings.slot_save_path is None:
            self._own_files = Path(
                gettempdir(), f"trio-admission-slots-{token_hex(8)}"
            )  # the engine makes it
        self.seats = Seats(self.upstream, self.pool, settings, self.slot_files)
        self._start = starter(settings, slot_files=self.slot_files, progress=progress)
        self._patience = patience
        self._supervising = trio.CancelScope()
        self._is_retired = False
        self._has_worked = False
        # Whoever starts a server knows better than a clock whether it will be back.
        self.condition = Condition(self.pool, settings.away_limit if self._start is None else None)
        self.context: int | None = None
        """Tokens that one sequence may have, if the server has said so."""
        is_kept = settings.has_isolated_slots is False and admission.kv_budget
        self._tokens = TokenBudget(settings, self.upstream, is_kept=is_kept)
        self._configured = settings.slots
        self._has_line = admission.enabled
        self._looking = trio.Lock()
        self._settling: dict[trio.CancelScope, int] = {}  # -> its slots
        self._looked = trio.Event()  # at the slots; another one for each look
        self._looks = 0
        self._looked_at = -math.inf
        self._busy: frozenset[int] = frozenset()
        self._was_there = False
        # The address of a server of ours is another one at each start, and means nothing to anybody.
        self._place = "" if settings.url is None else f"at {self.upstream.origin}"
        self._hurried = False
        self._said: dict[str, str] = {}  # the last line in the log, by what it is about

    @property
    def slot_files(self) -> Path | None:
        """The directory to which the server saves slots, if it does."""
        if self._own_files is not None:
            return self._own_files
        return None if self.settings.slot_save_path is None else Path(self.settings.slot_save_path)

    async def run(self) -> None:
        """Start the server, if it is ours to start, and watch it. Blocks until cancelled, then stops it."""
        self.condition.begin()
        self.seats.clear()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                if self._start is not None:
                    with self._supervising:
                        await supervise(
                            self.name,
                            self._start,
                            up=self._up,
                            down=self._down,
                            given_up=self._give_up,
                            has_worked=lambda: self._has_worked,
                            patience=self._patience,
                        )
        finally:
            self.seats.clear()
            if self._own_files is not None:
                rmtree(self._own_files, ignore_errors=True)

    def works(self) -> None:
        """Take note that the server has produced something for a request."""
        self._has_worked = True

    def _up(self, url: str, api_key: str) -> None:
        self._has_worked = False
        self.upstream.point_at(url, api_key)
        self.condition.doubt()

    def _down(self, _reason: str) -> None:
        self.upstream.point_at(None)
        self.seats.forget()
        self.condition.found(State.GONE)
        if self._is_retired:
            self._supervising.cancel()

    def _give_up(self, reason: str) -> None:
        self.upstream.point_at(None)
        self.condition.found(State.GONE)
        self.condition.give_up(reason)

    async def _watch(self) -> None:
        """Look again and again: at once when the server is doubted, every 10 s while it serves, else 5 s."""
        pause = _FIRST_PAUSE
        while True:
            await self.look()
            pause = _USUAL_PAUSE if self.condition.serves else min(2 * pause, _LONGEST_PAUSE)
            with trio.move_on_after(pause):
                await self.condition.doubted()
                pause = _FIRST_PAUSE

    async def look(self) -> State:
        """Ask the server what it does, and let that hold or release the line. Blocks for a few seconds."""
        address = self.upstream.url
        if address is None:
            return self.condition.state  # `supervise` says when it can be asked
        state, heard, props = await look(self.upstream, at_slots=self.pool.statistics().held > 0)
        if address != self.upstream.url:
            return self.condition.state  # that was another process
        if props is not None:
            self._take(props)
        elif state is State.UNKNOWN and self._configured is None:
            self._note("slots", logging.WARNING, f"is not asked how many slots it has: {heard}; using 1")
        self._was_there |= state is not State.GONE
        word = state.value if self._was_there else "not there"
        news = f"{self._place} is {word}: {heard}".lstrip()
        is_fine = state.serves and state is not State.REFUSING
        self._note("state", logging.INFO if is_fine else logging.WARNING, news)
        if state in {State.GONE, State.LOADING, State.SLEEPING}:
            self.seats.forget()
        self.seats.tidy()
        self.condition.found(state, heard)
        return state

    async def weigh(self, exchange: Exchange) -> Charge:
        """Return what a request is to be charged here; see `TokenBudget.weigh`."""
        return await self._tokens.weigh(
            exchange,
            slots=self.pool.statistics().slots,
            context=self.context,
            can_ask=self.condition.serves,
        )

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
            await self._look_at_slots()
            pause = _SECOND_LOOK
            while len(self._busy) > self.pool.statistics().held - sum(self._settling.values()):
                with trio.move_on_after(pause) as alone:
                    await self._looked.wait()  # what somebody else sees will do
                if alone.cancelled_caught:
                    await self._look_at_slots()
                pause = min(2 * pause, _LATER_LOOKS)
        del self._settling[scope]

    def retire(self) -> None:
        """Start no server again that is down or goes down: the gateway ends, and nobody waits for it."""
        self._is_retired = True
        if self.upstream.url is None:
            self._supervising.cancel()

    def hurry(self) -> None:
        """Let nobody wait in `settled` any more: this is the end of the gateway."""
        self.retire()
        self._hurried = True
        for scope in self._settling:
            scope.cancel()

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[Header] = (),
        query: bytes = b"",
        body: bytes = b"",
    ) -> WholeAnswer:
        """Ask the server what takes no slot, whoever waits; see `Upstream.fetch`.

        Raises:
            ProblemError: Also `backend_unavailable`, while the server is known to be away, or if it says that
                it loads its model.
        """
        self.condition.check_now()
        answer = await self.upstream.fetch(method, path, headers=headers, query=query, body=body)
        if answer.is_loading:
            self.condition.doubt()
            raise ProblemError(backend_unavailable(retry_after=AWAY_RETRY))
        return answer

    async def listed_models(self, headers: Sequence[Header]) -> list[dict[str, object]]:
        """Return its entries for the list of models: those configured, else what it says.

        Blocks for 2 s at most.

        Args:
            headers: Sent to the server.
        """
        if self.models:
            return [{"id": name, "object": "model", "owned_by": "llamacpp"} for name in self.models]
        return model_entries((await ask(self.upstream, "GET", "/v1/models", headers=headers)).value)

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
            news = f"has {slots} slots" + ("" if used == slots else f"; it is sent {used} requests at once")
            self._note("slots", logging.INFO, news)
        if used != now:
            self.pool.resize(slots=used)
        if self._tokens.is_kept and self.settings.kv_tokens is None and self.context is not None:
            self.pool.resize(kv_tokens=self.context)

    async def _look_at_slots(self) -> None:
        """Ask which slots are busy, or wait for an answer to somebody who asks later than now."""
        before = self._looks
        async with self._looking:
            if self._looks == before:  # else somebody has begun to look since, for all who wait here
                await trio.sleep_until(self._looked_at + _BETWEEN_LOOKS)
                self._looks += 1
                self._looked_at = trio.current_time()
                self._busy = await busy_slots(self.upstream)
                self._looked.set()
                self._looked = trio.Event()

    def _note(self, topic: str, level: int, news: str) -> None:
        """Log it, unless it is what was said last of this."""
        if self._said.get(topic) != news:
            self._said[topic] = news
            log.log(level, "backend %s %s", self.name, news)
