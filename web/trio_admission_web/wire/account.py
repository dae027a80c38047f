"""What a backend says that a request has cost it."""

from __future__ import annotations

import json

from .exchange import Account
from .sse import read_fields, split_events

TIMINGS = b'"timings"'
"""What every event that tells it contains."""


def read_accounts(events: bytes) -> list[Account]:
    """Return what events account for, one for each choice.

    A choice is accounted for with its end or right behind it. Events before that may tell how far it is
    (`timings_per_token`), which does not count, and neither does what cannot be read.
    """
    found = []
    for event in split_events(events):
        try:
            chunk = json.loads(read_fields(event).get(b"data", b""))
            timings = chunk["timings"]
            if chunk.get("stop", True) and all(part["finish_reason"] for part in chunk.get("choices", ())):
                prompt_ms = timings.get("prompt_ms")
                account = Account(
                    max(0, int(timings["prompt_n"])),
                    max(0, int(timings["predicted_n"])),
                    max(0, int(timings.get("cache_n", 0))),
                    None if prompt_ms is None else float(prompt_ms),
                )
                found.append(account)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            continue
    return found
