"""Admission control for Trio: who may generate now, who waits, and in what order.

The house, from the ground up:

* `_errors`, `_config`, `_records`: the refusals, the settings, the frozen records;
* `_states`, `_claim`, `_line`, `_holdings`, `_budget`, `_announcer`: the parts of the pure
  core, which never waits and never imports Trio;
* `_granting`, `_core`: the one function that grants; every change of a pool, each of which ends in it;
* `_lease`, `_reservation`, `_pool`: every ``await`` of the library, as scopes round the core;
* `testing`: help for tests, not imported from here.
"""

from ._budget import ParkBudget as ParkBudget, ResumeTicket as ResumeTicket
from ._config import AdmissionConfig as AdmissionConfig
from ._errors import (
    AdmissionError as AdmissionError,
    LeaseLost as LeaseLost,
    LineFull as LineFull,
    PoolClosed as PoolClosed,
    PoolUnavailable as PoolUnavailable,
    WaitTimeout as WaitTimeout,
)
from ._lease import Held as Held, Lease as Lease, Parked as Parked
from ._pool import Pool as Pool, PoolRegistry as PoolRegistry, SlotPool as SlotPool
from ._records import (
    Cost as Cost,
    EventKind as EventKind,
    Instrument as Instrument,
    PoolEvent as PoolEvent,
    PoolStatistics as PoolStatistics,
    Waiting as Waiting,
)
from ._reservation import Reservation as Reservation
from ._states import LeaseState as LeaseState

__version__ = "0.1.0"
