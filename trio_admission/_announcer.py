"""Tells instruments what changed, after the change."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from ._records import Instrument, PoolEvent


@dataclass
class _Unraisable:
    """What `sys.unraisablehook` takes."""

    exc_type: type[BaseException]
    exc_value: BaseException | None
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: Any


class Announcer:
    """The instruments of a pool, and the events of the change that is under way."""

    def __init__(self) -> None:
        self.instruments: list[Instrument] = []
        self.events: list[PoolEvent] = []
        self.telling = False

    def note(self, event: PoolEvent) -> None:
        """Keep an event until the change is over."""
        self.events.append(event)

    def tell(self) -> None:
        """Tell what was noted. An instrument that raises is removed, and its error reported."""
        events, self.events = self.events, []
        self.telling = True
        try:
            for event in events:
                for instrument in tuple(self.instruments):
                    self._tell_one(instrument, event)
        finally:
            self.telling = False

    def _tell_one(self, instrument: Instrument, event: PoolEvent) -> None:
        try:
            instrument(event)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the pool's change stands
            if instrument in self.instruments:
                self.instruments.remove(instrument)
            sys.unraisablehook(
                _Unraisable(
                    type(error), error, error.__traceback__, "Instrument of a pool removed", instrument
                )
            )
