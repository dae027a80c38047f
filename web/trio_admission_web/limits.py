"""What one key may have at once, judged against everybody who is here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .problems import ProblemError, flow_limit, request_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .passage import Passage


def check_requests(passage: Passage, passages: Iterable[Passage]) -> None:
    """Refuse one that is more than its key may have here; ``passages`` has it too.

    Raises:
        ProblemError: `flow_limit`.
    """
    key = passage.key
    if key is None or key.max_requests is None:
        return
    if sum(1 for each in passages if _is_like(each, passage)) > key.max_requests:
        raise ProblemError(request_limit(limit=key.max_requests, retry_after=_retry_after(passage)))


def check_waiting(passage: Passage, passages: Iterable[Passage]) -> None:
    """Refuse one that is more than its key may have in the line; ``passages`` has it too.

    Raises:
        ProblemError: `flow_limit`.
    """
    key = passage.key
    if key is None or key.max_waiting is None:
        return
    if sum(1 for each in passages if each.waits and _is_like(each, passage)) > key.max_waiting:
        limit = key.max_waiting
        raise ProblemError(flow_limit(waiting=limit, limit=limit, retry_after=_retry_after(passage)))


def _is_like(each: Passage, passage: Passage) -> bool:
    return each.key is not None and passage.key is not None and each.key.name == passage.key.name


def _retry_after(passage: Passage) -> int:
    return min(60, max(1, math.ceil(passage.backend.pool.estimated_wait() or 1)))
