"""People at the door of a pool: tasks that arrive, wait, hold and park as a test tells them to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import trio

from trio_admission import AdmissionError, LeaseState
from trio_admission.testing import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from trio_admission import Lease, Parked, Pool, Reservation

Step = Literal["leave", "park", "come back", "unpark", "repark"]


def empty(pool: Pool) -> bool:
    """Whether nobody has anything of the pool."""
    now = pool.statistics()
    return not (now.held or now.waiting or now.parked or now.returning or now.kv_held)


class Visitor:
    """One task at the pool. What it is told it does as soon as it runs."""

    reservation: Reservation
    lease: Lease | None = None
    parked: Parked | None = None
    error: AdmissionError | None = None
    gone = False

    def __init__(self, name: str, house: House) -> None:
        self.name = name
        self._house = house
        self._tell, self._steps = trio.open_memory_channel[Step](10)
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Visitor {self.name}>"

    @property
    def waits(self) -> bool:
        """Whether it stands in the line for its first grant."""
        return not self.gone and self.reservation.position > 0

    @property
    def holds(self) -> bool:
        """Whether its task runs with a slot."""
        return self in self._house.holding

    async def served(self) -> None:
        """Wait until its task runs with a slot."""
        await until(lambda: self.holds)

    async def left(self) -> None:
        """Wait until its task is over."""
        await until(lambda: self.gone)

    def leave(self) -> None:
        """Leave the lease's scope."""
        self._tell.send_nowait("leave")

    def cancel(self) -> None:
        """Be cancelled, wherever it is."""
        self._scope.cancel()

    async def park(self) -> None:
        """Enter a park, and be inside it."""
        self._tell.send_nowait("park")
        await until(lambda: self.parked is not None)

    def come_back(self) -> None:
        """Finish the body of the park."""
        self._tell.send_nowait("come back")

    async def return_to_line(self) -> None:
        """Finish the body of the park, and stand in the line: there must be no slot that is free."""
        assert self.parked is not None
        self.come_back()
        await until(lambda: self.parked is not None and self.parked.position > 0)

    def unpark(self) -> None:
        """Ask for a slot inside the park."""
        self._tell.send_nowait("unpark")

    def repark(self) -> None:
        """Leave the block in which the slot was held inside the park."""
        self._tell.send_nowait("repark")

    async def visit(
        self, how: Mapping[str, Any], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the task."""
        arrived = False
        try:
            with self._scope:
                async with self._house.pool.reserve(**how) as self.reservation:
                    task_status.started()
                    arrived = True
                    self.lease = await self.reservation.wait()
                    await self._hold(self.lease)
        except AdmissionError as error:
            if not arrived:
                raise
            self.error = error
        finally:
            self.gone = True

    async def _hold(self, lease: Lease) -> None:
        while True:
            with self._house.hold(self):
                step = await self._steps.receive()
            if step == "leave":
                return
            assert step == "park"
            async with lease.parked() as self.parked:
                while await self._steps.receive() == "unpark":
                    async with self.parked.unparked():
                        with self._house.hold(self):
                            assert await self._steps.receive() == "repark"
            self.parked = None


class House:
    """A pool and its visitors."""

    def __init__(self, pool: Pool, nursery: trio.Nursery) -> None:
        self.pool = pool
        self.served: list[str] = []
        """Who began to hold a slot, for the first time or again, in this order."""
        self.holding: set[Visitor] = set()
        self.most = 0
        """The most that ever held a slot together."""
        self._nursery = nursery

    async def arrive(self, name: str, **how: Any) -> Visitor:
        """Let somebody arrive, and return when they have a slot or a place. ``how`` goes to `reserve`."""
        visitor = Visitor(name, self)
        await self._nursery.start(visitor.visit, how)
        return visitor

    async def serve(self, name: str, **how: Any) -> Visitor:
        """Let somebody arrive, and return when they hold a slot."""
        visitor = await self.arrive(name, **how)
        await visitor.served()
        return visitor

    def hold(self, visitor: Visitor) -> _Holding:
        """Note for the length of a block that somebody runs with a slot."""
        return _Holding(self, visitor)


@dataclass
class _Holding:
    house: House
    visitor: Visitor

    def __enter__(self) -> None:
        assert self.visitor.lease is not None
        assert self.visitor.lease.state is not LeaseState.ENDED, "went on without a lease"
        self.house.holding.add(self.visitor)
        self.house.served.append(self.visitor.name)
        self.house.most = max(self.house.most, len(self.house.holding))

    def __exit__(self, *exc: object) -> None:
        self.house.holding.remove(self.visitor)


@asynccontextmanager
async def visiting(pool: Pool) -> AsyncIterator[House]:
    """Open a pool's door for a block. At its end everybody is sent away, and must leave nothing behind."""
    async with trio.open_nursery() as nursery:
        yield House(pool, nursery)
        nursery.cancel_scope.cancel()
    await until(lambda: empty(pool))


@dataclass(frozen=True)
class Visit:
    """What one visitor does, in seconds: hold, park, hold, park ...; ``how`` goes to `reserve`."""

    name: str
    steps: tuple[float, ...]
    at: float
    how: Mapping[str, Any] = field(default_factory=dict)


def visit(name: str, *steps: float, at: float = 0.0, **how: Any) -> Visit:
    """Describe a visit that begins at ``at``: seconds to hold, to park, to hold again, and so on."""
    return Visit(name, steps, at, how)


async def timeline(pool: Pool, *visits: Visit) -> dict[str, list[float]]:
    """Let visitors come, those of one moment in the order given, and say at which times each got a slot."""
    served: dict[str, list[float]] = {planned.name: [] for planned in visits}

    async def live(planned: Visit, *, task_status: trio.TaskStatus[None]) -> None:
        async with pool.reserve(**planned.how) as reservation:
            task_status.started()
            lease = await reservation.wait()
            for number, seconds in enumerate(planned.steps):
                if number % 2:
                    async with lease.parked():
                        await trio.sleep(seconds)
                else:
                    served[planned.name].append(trio.current_time())
                    await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for planned in sorted(visits, key=lambda planned: planned.at):
            await trio.sleep_until(planned.at)
            await nursery.start(partial(live, planned))
    assert empty(pool)
    return served
