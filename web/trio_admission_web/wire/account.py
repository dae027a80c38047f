"""What a backend says that a request has cost it."""

from __future__ import annotations

import json

from .sse import read_fields, split_events

TIMINGS = b'"timings"'
"""What every event that tells it contains."""


def count_tokens(events: bytes) -> tuple[int, int]:
    """Sum the tokens that events account for: of prompts, those that were read anew, and those generated.

    A choice is accounted for with its end or right behind it. Events before that may tell how far it is
    (`timings_per_token`), which does not count, and neither does what cannot be read.
    """
    prompt = generated = 0
    for event in split_events(events):
        try:
            chunk = json.loads(read_fields(event).get(b"data", b""))
            timings = chunk["timings"]
            if chunk.get("stop", True) and all(part["finish_reason"] for part in chunk.get("choices", ())):
                prompt += int(timings["prompt_n"])
                generated += int(timings["predicted_n"])
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            continue
    return max(0, prompt), max(0, generated)
