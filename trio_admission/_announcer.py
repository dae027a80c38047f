"""Tells instruments what changed, after the change."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ._records import Instrument, PoolEvent


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
            told = SimpleNamespace(
                exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__,
                err_msg="Instrument of a pool removed", object=instrument,
            )  # fmt: skip
            sys.unraisablehook(cast("Any", told))
