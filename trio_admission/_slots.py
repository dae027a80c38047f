"""Which slot ids are free, and in what order they are given away.

A slot that somebody may come back to is worth more where it is: its KV cache is still warm. So ids that
were freed by an end go first, the latest of them first (what is least likely to be evicted from caches
elsewhere), and ids that a parked lease or a resume ticket left behind go last, the oldest of them first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SlotIds:
    """The free ids among ``0 .. size - 1``, cold or warm. The others are the holders'."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.retired = 0  # of those that are held, how many will not come back
        self.cold: dict[int, None] = dict.fromkeys(reversed(range(size)))  # the last one goes first
        self.warm: OrderedDict[int, object] = OrderedDict()  # id -> who left it; the first one goes first

    @property
    def free(self) -> int:
        """How many ids nobody holds."""
        return len(self.cold) + len(self.warm)

    @property
    def room(self) -> int:
        """How many more may be held: fewer than are free where some are to retire, perhaps less than none."""
        return len(self.cold) + len(self.warm) - self.retired

    @property
    def held(self) -> int:
        """How many ids somebody holds."""
        return self.size - self.room

    def take(self, count: int, preferred: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Take ``count`` free ids, or all, those of ``preferred`` first where they are free."""
        if count == 1 and self.cold and not preferred:
            return (self.cold.popitem()[0],)
        if count == len(preferred) == 1 and self.warm.pop(preferred[0], self) is not self:
            return preferred
        taken = [slot for slot in dict.fromkeys(preferred) if slot in self.cold or slot in self.warm][:count]
        for slot in taken:
            if self.cold.pop(slot, self) is self:
                del self.warm[slot]
        while len(taken) < min(count, self.size):
            taken.append(self.cold.popitem()[0] if self.cold else self.warm.popitem(last=False)[0])
        return tuple(taken)

    def put_back(self, slots: Iterable[int], left_by: object = None) -> None:
        """Free ``slots``, warm if somebody who may come back left them. Ids above the size retire."""
        for slot in slots:
            if slot < self.size:
                if left_by is None:
                    self.cold[slot] = None
                else:
                    self.warm[slot] = left_by
            else:
                self.retired -= 1

    def cool(self, slots: Iterable[int], left_by: object) -> None:
        """Forget that ``left_by`` might come back to ``slots``; as if they had been freed by an end now."""
        for slot in slots:
            if self.warm.get(slot, self) is left_by:
                del self.warm[slot]
                self.cold[slot] = None

    def resize(self, size: int, held: set[int]) -> None:
        """Set the number of ids. Those that are ``held`` stay so, and retire when they come back."""
        for slot in range(size, self.size):
            self.cold.pop(slot, None)
            self.warm.pop(slot, None)
        fresh = [slot for slot in range(self.size, size) if slot not in held]
        self.cold = dict.fromkeys(reversed(fresh)) | self.cold  # never used before: after those that were
        self.size = size
        self.retired = sum(slot >= size for slot in held)

    def check(self, held: set[int]) -> None:
        """Assert that every id is in one place."""
        places = [*held, *self.cold, *self.warm]
        assert len(places) == len(set(places)), f"an id is in two places: {self}, {held} held"
        missing = set(range(self.size)) - set(places)
        assert not missing, f"ids are lost: {missing}"
        assert all(slot < self.size for slot in (*self.cold, *self.warm)), f"a retired id is free: {self}"

    def __repr__(self) -> str:
        return f"<SlotIds cold={list(self.cold)} warm={list(self.warm)}>"
