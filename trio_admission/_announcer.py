"""Tells instruments what changed, after the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._records import EventKind, Instrument, PoolEvent

if TYPE_CHECKING:
    from ._claim import Claim


class RemovedInstrument:
    """Has Python report an instrument's error to `sys.unraisablehook`, as it does for one in ``__del__``.

    Nobody else can make what that hook is called with, and an error of the hook stays with Python.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


class Announcer:
    """The instruments of a pool, and the events of the change that is under way."""

    def __init__(self, pool: str) -> None:
        self.instruments: list[Instrument] = []
        self.telling = False
        self.at = 0.0  # the time of the change
        self._pool = pool
        self._events: list[PoolEvent] = []

    def note(
        self, kind: EventKind, claim: Claim | None, seconds: float | None = None, reason: str | None = None
    ) -> None:
        """Keep an event until the change is over."""
        if self.instruments:
            number, (flow, priority) = (None, ("", 0)) if claim is None else (claim.id, claim.key)
            slots = claim.slots if claim is not None and kind is not EventKind.TICKET_ISSUED else ()
            event = PoolEvent(kind, self._pool, self.at, number, flow, priority, slots, seconds, reason)
            self._events.append(event)

    def tell(self) -> None:
        """Tell what was noted. An instrument that raises is removed, and its error reported."""
        events, self._events = self._events, []
        self.telling = True
        try:
            for event in events:
                for instrument in tuple(self.instruments):
                    try:
                        instrument(event)
                    except BaseException as error:  # noqa: BLE001  # whatever it is, the pool's change stands
                        self._remove(instrument, error)
        finally:
            self.telling = False

    def _remove(self, instrument: Instrument, error: BaseException) -> None:
        if instrument in self.instruments:
            self.instruments.remove(instrument)
        RemovedInstrument(error)
