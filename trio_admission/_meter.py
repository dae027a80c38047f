"""How long slots are held, and what follows from it for those who wait."""

from __future__ import annotations

import random

_WEIGHT = 0.1  # of the latest holding time in the moving average


class Meter:
    """A moving average of holding times, in seconds; None until the first holding has ended."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def note(self, seconds: float) -> None:
        """Take one holding time into account: from a grant to the park or end that followed."""
        self.mean = seconds if self.mean is None else self.mean + _WEIGHT * (seconds - self.mean)

    def wait(self, position: int, slots: int) -> float | None:
        """Return the expected wait at a place in the line, in seconds.

        With every slot taken, one comes free each ``mean / slots`` seconds.
        """
        return None if self.mean is None else position * self.mean / slots

    def retry_after(self, position: int, slots: int) -> float:
        """Return when to come again, in seconds within 1..60.

        With jitter of a fifth either way, so that those who are refused together do not return together.
        """
        expected = self.wait(position, slots) or 1.0
        return min(60.0, max(1.0, expected * random.uniform(0.8, 1.2)))  # noqa: S311  # not a secret
