"""What a client is told when the pool refuses its request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trio_admission import LineFull, PoolClosed, WaitTimeout

from . import problems
from .gateway import DRAIN_RETRY

if TYPE_CHECKING:
    from trio_admission import AdmissionConfig

    from .problems import Problem


def refusal(error: LineFull | WaitTimeout | PoolClosed, limits: AdmissionConfig) -> Problem:
    """Return the problem that the refusal is to its client; ``limits`` are those of the line."""
    if isinstance(error, PoolClosed):
        return problems.draining(retry_after=DRAIN_RETRY)
    retry_after = math.ceil(error.retry_after)
    waiting, slots = error.statistics.waiting, error.statistics.slots
    if isinstance(error, WaitTimeout):
        return problems.queue_timeout(waiting=waiting, slots=slots, retry_after=retry_after)
    if error.reason == "flow":
        limit = limits.max_waiting_per_flow or 0
        return problems.flow_limit(waiting=waiting, limit=limit, retry_after=retry_after)
    return problems.queue_full(waiting=waiting, slots=slots, retry_after=retry_after)
