"""The slots and their queue: who decodes, who is deferred, what each slot remembers."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import trio

from .errors import CONTEXT_EXCEEDED, ApiError, prompt_too_long
from .results import Broken, Ended, Failed, Launched, Result, Timings, Token
from .script import Cut, End, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .http import Request

_SIMILARITY = 0.1  # a slot is chosen for what it remembers when that is more than this part of the prompt
_SPOILT = "\N{REPLACEMENT CHARACTER}"


@dataclass(eq=False, slots=True, kw_only=True)
class Job:
    """One prompt and the sequences that are made of it; they get their slots together.

    `results` gets each result at once; `left` is called when the job neither waits nor holds a slot any more.
    """

    request: Request
    prompt: list[str]
    sequences: Sequence[Iterator[Piece]]
    first_index: int
    limit: int | None
    pin: int | None
    prefill: float
    interval: float
    pauses: Mapping[int, float]
    cut: Cut | None
    streaming: bool
    results: trio.MemorySendChannel[Result | None]  # None: the client left
    left: Callable[[], None]
    cancelled: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False, slots=True)
class Run:
    """One sequence in its slot."""

    job: Job
    offset: int
    cached: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    began: float = 0.0
    decoded: int = 0
    spoilt: bool = False


@dataclass(eq=False, slots=True)
class Slot:
    """One of the server's slots and the tokens that it remembers."""

    id: int
    kv: list[str] = field(default_factory=list)
    run: Run | None = None
    task: int = -1
    used_at: float = -1.0
    freed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)


class Engine:
    """What decodes. A job that finds no slot is deferred: first in, first out, without a limit.

    Every run is in exactly one slot. A job is deferred, or has runs, or has left.
    """

    def __init__(self, nursery: trio.Nursery, *, slots: int, n_ctx: int, unified: bool) -> None:
        if slots < 1 or n_ctx < 1:
            raise ValueError("slots and n_ctx must be at least 1")
        self.slots = [Slot(number) for number in range(slots)]
        self.n_ctx = n_ctx
        self.unified = unified
        self.deferred: deque[Job] = deque()
        self.delivered_at = trio.current_time()
        self.totals: Counter[str] = Counter()
        self._nursery = nursery
        self._tasks = 0

    @property
    def busy(self) -> list[Slot]:
        """The slots that decode."""
        return [slot for slot in self.slots if slot.run is not None]

    def submit(self, job: Job) -> None:
        """Launch the job if it finds its slots, even ahead of those that are deferred; else defer it."""
        if not self._try_launch(job):
            self.deferred.append(job)

    def cancel(self, job: Job) -> None:
        """Stop the job: a deferred one leaves the queue, a running one its slots, after its prefill."""
        job.cancelled.set()
        if job in self.deferred:
            self.deferred.remove(job)
            job.left()

    def kill(self) -> None:
        """Drop every job, with no result for anybody."""
        while self.deferred:
            self.deferred.popleft().left()
        for slot in self.busy:
            self._free(slot)

    def delivered(self) -> None:
        """Note that somebody got a result: lost clients are looked for only after a second without any."""
        self.delivered_at = trio.current_time()

    def _try_launch(self, job: Job) -> bool:
        idle = [slot for slot in self.slots if slot.run is None]
        idle.sort(key=lambda slot: self._preference(slot, job.prompt), reverse=True)
        if job.pin is not None:
            pinned = self.slots[job.pin % len(self.slots)]
            if pinned.run is not None:
                # llama-server's own fault: the look into its prompt cache overwrites what the busy slot holds
                pinned.run.spoilt = pinned.run.job.request.corrupted = True
                return False
            idle.sort(key=lambda slot: slot is not pinned)
        if len(idle) < len(job.sequences):
            return False
        for offset, slot in enumerate(idle[: len(job.sequences)]):
            self._tasks += 1
            slot.task = self._tasks
            cached = max(min(_common(slot.kv, job.prompt), len(job.prompt) - 1), 0)
            del slot.kv[cached:]
            slot.run = Run(job, offset, cached)
            job.request.slots.append(slot.id)
            self._nursery.start_soon(self._decode, slot, slot.run)
        if job.request.launched is None:
            job.request.launched = trio.current_time()
        return True

    def _preference(self, slot: Slot, prompt: list[str]) -> tuple[float, float, int]:
        similarity = _common(slot.kv, prompt) / max(len(prompt), 1)
        return (similarity if similarity > _SIMILARITY else 0.0, -slot.used_at, slot.id)

    async def _decode(self, slot: Slot, run: Run) -> None:
        with run.scope:
            result = await self._generate(slot, run)
            self._count(run)
            self._free(slot)
            self._look_at_deferred(slot)
            if result is not None:
                self._deliver(run.job, result)

    async def _generate(self, slot: Slot, run: Run) -> Result | None:
        job, index = run.job, run.job.first_index + run.offset
        if len(job.prompt) >= self.n_ctx:
            slot.kv.clear()
            return Failed(prompt_too_long(len(job.prompt), self.n_ctx))
        if run.offset == 0:
            self._deliver(job, Launched())
        await trio.sleep(job.prefill)  # a batch cannot be interrupted
        run.began = trio.current_time()
        await self._remember(slot, job.prompt[run.cached :])
        allowed = min(self.n_ctx - len(job.prompt), self.n_ctx if job.limit is None else max(job.limit, 1))
        last = allowed if job.cut is None else min(allowed, job.cut.after)
        for number, piece in enumerate(islice(job.sequences[run.offset], last)):
            if not await _pause(job, number):
                return None
            run.decoded += 1
            await self._remember(slot, [piece.text])
            heard = Piece(_SPOILT, piece.kind, piece.call, piece.name) if run.spoilt else piece
            self._deliver(job, Token(index, heard, _timings(run)))
        if job.cut is None:
            return Ended(index, run.decoded == allowed, _timings(run), slot.id)
        if not await _pause(job, run.decoded):
            return None
        if job.cut.how is End.SILENCE:  # the slot stays taken, as when a server hangs
            self._deliver(job, Broken(End.SILENCE))
            await job.cancelled.wait()
            return None
        return Failed(CONTEXT_EXCEEDED) if job.cut.how is End.ERROR else Broken(job.cut.how)

    async def _remember(self, slot: Slot, tokens: Sequence[str]) -> None:
        slot.kv += tokens
        if self.unified:
            for idle in (one for one in self.slots if one.run is None):
                if self._remembered() > self.n_ctx:
                    idle.kv.clear()
            if self._remembered() > self.n_ctx:
                self._fail(self.busy, CONTEXT_EXCEEDED)
        await trio.lowlevel.checkpoint_if_cancelled()  # the run that overflows is among those that die

    def _remembered(self) -> int:
        return sum(len(slot.kv) for slot in self.slots)

    def _fail(self, slots: list[Slot], error: ApiError) -> None:
        jobs = dict.fromkeys(slot.run.job for slot in slots if slot.run is not None)
        for slot in slots:
            slot.kv.clear()
            self._free(slot)
        for slot in slots:
            self._look_at_deferred(slot)
        for job in jobs:
            self._deliver(job, Failed(error))

    def _free(self, slot: Slot) -> None:
        run, slot.run, slot.used_at = slot.run, None, trio.current_time()
        assert run is not None
        run.scope.cancel()
        slot.freed.unpark_all()
        if all(other.run is None or other.run.job is not run.job for other in self.slots):
            run.job.left()

    def _look_at_deferred(self, slot: Slot) -> None:
        """Take one deferred job for a slot that came back; one that cannot run now goes to the end."""
        if self.deferred:
            pinned = (
                job for job in self.deferred if job.pin is not None and job.pin % len(self.slots) == slot.id
            )
            job = next(pinned, self.deferred[0])
            self.deferred.remove(job)
            self.submit(job)

    def _deliver(self, job: Job, result: Result) -> None:
        if job.streaming or not isinstance(result, Token):
            self.delivered()
        job.results.send_nowait(result)

    def _count(self, run: Run) -> None:
        if run.decoded:
            timings = _timings(run)
            self.totals["prompt_tokens"] += timings.prompt_n
            self.totals["cached_tokens"] += timings.cache_n
            self.totals["predicted_tokens"] += timings.predicted_n
            self.totals["prompt_ms"] += round(timings.prompt_ms)
            self.totals["predicted_ms"] += round(timings.predicted_ms)


async def _pause(job: Job, number: int) -> bool:
    """Wait until the token with that number is due; False when the job was cancelled."""
    with trio.move_on_after(job.interval + job.pauses.get(number, 0.0)):
        await job.cancelled.wait()
    return not job.cancelled.is_set()


def _timings(run: Run) -> Timings:
    job, predicted_ms = run.job, (trio.current_time() - run.began) * 1000
    return Timings(run.cached, len(job.prompt) - run.cached, job.prefill * 1000, run.decoded, predicted_ms)


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
