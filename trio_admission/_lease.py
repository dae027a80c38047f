"""What a task holds: the lease, the park inside it, and the slot held again inside that.

Everything that changes a pool here is protected from `KeyboardInterrupt`: an interrupt between two lines of
a grant would leave a slot with nobody. The bodies of the scopes are the caller's code and are not protected.
"""

from __future__ import annotations

import math
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Self, final

import trio
from trio import CancelScope
from trio.lowlevel import checkpoint, current_trio_token, enable_ki_protection

from ._budget import ParkBudget, ResumeTicket
from ._errors import LeaseLost
from ._records import LEAST_TIME, MOST, Cost, require_kind, require_number
from ._states import ENDED, HELD_AGAIN, RETURNING, WAITING, LeaseState

if TYPE_CHECKING:
    from types import TracebackType

    from ._claim import Claim
    from ._core import Core


_run_budget = trio.lowlevel.RunVar[ParkBudget | None]("trio_admission.park_budget", None)


class Waits:
    """How tasks wait for the grants of one pool.

    Whoever makes room wakes the task that is next, as Trio's own locks do. (A memory channel for each who
    waits would do the same, slower and with 2 KB each.) Only the cancel scope round the wait can cut it; once
    the task was woken nothing can, as it owns what it was granted.
    """

    def __init__(self, core: Core, own_budget: ParkBudget | None) -> None:
        self.core = core
        self.run: trio.lowlevel.TrioToken | None = None
        self._own_budget = own_budget
        self._caretaker: CancelScope | None = None

    def enter_run(self) -> None:
        """Belong to the Trio run of the calling task from now on."""
        if self.run is not None and not self.core.idle:
            raise RuntimeError("the pool is in use in another Trio run")
        self.run = current_trio_token()
        self.core.now = trio.lowlevel.current_clock().current_time
        self.core.forget_tickets()  # their times are of another clock
        if self._own_budget is None:
            budget = _run_budget.get()
            if budget is None:
                limiter = trio.to_thread.current_default_thread_limiter()
                budget = ParkBudget._by_threads(lambda: limiter.total_tokens)
                _run_budget.set(budget)
            budget._join(self.core)

    def take_care(self) -> None:
        """See to it that those whose ``max_wait`` has passed lose their places.

        A system task does it, one for a pool, and only while it is needed: those behind such a place must be
        looked at when it goes, also if no task waits for it.
        """
        if self._caretaker is None:
            self._caretaker = CancelScope()
            trio.lowlevel.spawn_system_task(self._take_care)
        self._caretaker.deadline = self.core.next_deadline

    async def _take_care(self) -> None:
        try:
            while (deadline := self.core.next_deadline) != math.inf:
                with CancelScope(deadline=deadline) as self._caretaker:
                    await trio.sleep_forever()
                await trio.lowlevel.cancel_shielded_checkpoint()  # a grant of this very tick still wins
                self.core.expire()
        finally:
            self._caretaker = None

    @enable_ki_protection
    async def for_grant(self, claim: Claim) -> None:
        """Wait until the claim stands in no line any more: it is granted or refused. Always a checkpoint."""
        if claim.state is not WAITING and claim.state is not RETURNING:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        if claim.wake is not None or not claim.id:
            raise RuntimeError("another task waits for this reservation, or its scope was not entered")
        claim.wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())

        def give_up(_: object) -> trio.lowlevel.Abort:
            claim.wake = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if claim.state is ENDED and claim.refusal is None:
            raise RuntimeError("its scope has ended while this task waited")


class Block:
    """A block inside a lease, with a nursery. Its own error leaves it as it is, not in a group."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._waits = lease._waits  # the lease's own parts
        self._claim = lease._claim
        self._manager = trio.open_nursery()

    async def _close(self, error: BaseException | None) -> BaseException | None:
        """Wait for the tasks, and return what leaves: None, ``error`` itself, or the tasks' group."""
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        try:
            swallowed = await self._manager.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            others = group.split(trio.Cancelled)[1]  # an outer cancel may have cut the tasks as well
            alone = others is None or (len(others.exceptions) == 1 and others.exceptions[0] is error)
            return error if error is not None and alone else others or group
        except BaseException as other:  # noqa: BLE001  # the caller raises what we return
            return other
        return None if swallowed else error


class Arrival:
    """The scope round one claim: arrival on entry, everything given back on exit.

    Its cancel scope is what stops the rest of the block when a park loses the lease; nothing else cancels it.
    """

    __slots__ = ("_claim", "_scope", "_waits")
    _scope: CancelScope
    _enters_at_once = False  # without a wait for the grant

    def __init__(self, waits: Waits, claim: Claim, parent: Lease | None = None) -> None:
        self._waits = waits
        self._claim = claim
        if parent is not None:
            require_kind(parent=(parent, Lease))
            if parent._waits is waits:  # a lease of another pool has no slot that would be of use here
                claim.parent = parent._claim

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        waits, claim = self._waits, self._claim
        if waits.run is not current_trio_token():
            waits.enter_run()
        if claim.id:
            raise RuntimeError("a reservation may be entered only once")
        try:
            waits.core.arrive(claim)
            if not claim.granted and claim.deadline != math.inf:
                waits.take_care()
            if claim.granted or self._enters_at_once:
                await checkpoint()
            else:
                await waits.for_grant(claim)
                if not claim.granted:
                    self._must_go_on()
        except BaseException:
            claim.unused = True
            waits.core.leave(claim)
            raise
        self._scope = scope = CancelScope()
        scope.__enter__()
        return self

    @enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        claim = self._claim
        self._waits.core.leave(claim)
        swallowed = self._scope.__exit__(kind, error, traceback)
        cut_by, claim.cut_by = claim.cut_by, None  # whose frames hold the claim
        if cut_by is not None and (error is None or swallowed):
            raise LeaseLost("the park ended in another way than by finishing its block") from cut_by

    @property
    def id(self) -> int:
        """The number under which `SlotPool.waiting` and events know it."""
        return self._claim.id

    def _must_go_on(self) -> None:
        """Raise what ended the reservation, if it is over."""
        claim = self._claim
        if claim.refusal is not None:
            raise copy(claim.refusal)  # one that was raised holds its frames, and those hold the claim
        if claim.state is ENDED:
            raise RuntimeError("the reservation has ended")


@final
class Lease(Arrival):
    """The right to generate, for the length of the scope that gave it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Lease {self.state.value} slots={self.slots}>"

    @property
    def slot(self) -> int | None:
        """The slot's id, the first of several; None while parked, after the end, and with control off."""
        slots = self._claim.slots
        return slots[0] if slots else None

    @property
    def slots(self) -> tuple[int, ...]:
        """The ids of all slots that are held now."""
        return self._claim.slots

    @property
    def state(self) -> LeaseState:
        """Where the lease stands."""
        return self._claim.state

    def parked(self, cost: Cost | None = None) -> Parked:
        """Give the slot back for the length of a block: ``async with lease.parked() as parked:``.

        Entering never blocks: the slot has gone to the next in line before the body runs. Finishing the
        block waits for a slot again, ahead of newcomers, and is a checkpoint. Any other way out ends the
        lease at once: it waits for no slot, the rest of the lease's scope is cancelled, and `LeaseLost`
        leaves that scope unless another error does. So a deadline for what the block waits for belongs
        inside it.

        When the park budget refuses, the slot is kept and ``parked.refused`` is true.

        Args:
            cost: What the lease shall take when it comes back; None = what it took before. The block may
                still change it through ``parked.cost``.

        Raises:
            RuntimeError: on entry, if the lease is not held.
        """
        require_kind(cost=(cost, Cost | None))
        return Parked(self, self._claim.cost if cost is None else cost)

    @enable_ki_protection
    def issue_ticket(self, ttl: float) -> ResumeTicket | None:
        """Return a ticket with which a later reservation of this flow returns like a parked holder.

        There is one for each lease; asking again returns the same. It counts against the park budget until it
        is used or has expired, and None is returned when the budget refuses it, or with control off.

        Args:
            ttl: Seconds from now until it expires, above 0.

        Raises:
            RuntimeError: if the lease has ended.
            ValueError: if ``ttl`` is not above 0, or is infinite.
        """
        require_number("ttl", ttl, LEAST_TIME, MOST)
        return self._waits.core.issue_ticket(self._claim, ttl)


@final
class Parked(Block):
    """A lease without its slot, for the length of a block. Made by `Lease.parked`."""

    nursery: trio.Nursery
    """Runs tasks for the time without a slot, the wait to return included; then they are cancelled."""
    cost: Cost
    """What the lease takes when it comes back; the block may change it."""

    def __init__(self, lease: Lease, cost: Cost) -> None:
        super().__init__(lease)
        self._task: trio.lowlevel.Task | None = None
        self.cost = cost

    @property
    def refused(self) -> bool:
        """Whether the park budget refused, so that the slot is kept during the block."""
        return self._claim.refused

    @property
    def position(self) -> int:
        """Place in the line on the way back, 1 = next; 0 while it does not wait."""
        return self._waits.core.position(self._claim)

    @property
    def estimated_wait(self) -> float | None:
        """Expected wait for a slot, in seconds; 0 while it does not wait, None before any measurement."""
        return self._waits.core.estimated_wait(self._claim)

    def unparked(self) -> Held:
        """Hold a slot for the length of a block inside this one: ``async with parked.unparked() as held:``.

        Entering waits for a slot, ahead of newcomers; if that wait is cut the lease is simply still parked.
        Leaving waits for the tasks of ``held.nursery``, then gives the slot on. In a refused park it does
        nothing but run its block and nursery.

        Raises:
            RuntimeError: on entry, from another task than the one that entered the park.
        """
        return Held(self)

    @enable_ki_protection
    async def __aenter__(self) -> Parked:
        self._waits.core.park(self._claim)
        self._task = trio.lowlevel.current_task()
        self.nursery = await self._manager.__aenter__()  # never a checkpoint
        return self

    @enable_ki_protection
    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        cut_by = error
        if error is None:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()  # a deadline that has passed must always show
                self._waits.core.come_back(self._claim, self.cost)
                await self._waits.for_grant(self._claim)
            except BaseException as cut:  # noqa: BLE001  # whatever it is ends the lease, and leaves below
                cut_by = cut
        if cut_by is not None:
            self._waits.core.leave(self._claim, lost=True)
        self.nursery.cancel_scope.cancel(reason="the park ended")
        leaving = await self._close(cut_by)
        if leaving is not None:
            cut_by = leaving  # a task's error ends the lease too, and explains why the wait was cut
        if cut_by is not None:
            self._waits.core.leave(self._claim, lost=True)
            self._claim.cut_by = cut_by  # only now: an outer cancel would keep the nursery's from ending
            self._lease._scope.cancel(reason="the lease was lost in a park")
        if leaving is not None and leaving is not error:
            raise leaving


@final
class Held(Block):
    """A slot held for the length of a block inside a park. Made by `Parked.unparked`."""

    nursery: trio.Nursery
    """Runs tasks with the slot held; leaving waits for them, and cancels none, before the slot goes on."""

    def __init__(self, parked: Parked) -> None:
        super().__init__(parked._lease)
        self._parked = parked

    @property
    def slot(self) -> int | None:
        """The slot's id, as `Lease.slot`."""
        return self._lease.slot

    @enable_ki_protection
    async def __aenter__(self) -> Held:
        if self._parked._task is not trio.lowlevel.current_task():
            raise RuntimeError("only the task that entered the park may unpark")
        await trio.lowlevel.checkpoint_if_cancelled()
        self._waits.core.unpark(self._claim, self._parked.cost)
        try:
            await self._waits.for_grant(self._claim)
        except BaseException:
            self._give_on()
            raise
        self.nursery = await self._manager.__aenter__()  # never a checkpoint
        return self

    @enable_ki_protection
    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        leaving = await self._close(error)
        self._give_on()
        if leaving is not None and leaving is not error:
            raise leaving
        return leaving is None

    def _give_on(self) -> None:
        if self._claim.state in {RETURNING, HELD_AGAIN}:
            self._waits.core.repark(self._claim)
