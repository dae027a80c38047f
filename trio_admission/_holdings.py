"""What is held of a pool's slots and KV tokens, whether something more fits, and which ids it gets.

A slot that somebody may come back to is worth more where it is: its KV cache is still warm. So ids that
were freed by an end go first, the latest of them first (what is least likely to be evicted from caches
elsewhere), and ids that a parked lease or a resume ticket left behind go last, the oldest of them first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ._records import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._claim import Claim


class Holdings:
    """The slot ids ``0 .. size - 1``, free or the holders', and the sums of what the holders are charged.

    ``slots`` and ``tokens`` never exceed the pool, except after a shrink. A claim that is larger than the
    pool is charged the whole of it and is ``alone``. Tokens are summed up even while they are not limited;
    slots need no sum, since what the others are charged is the ids that they have.
    """

    def __init__(self, size: int, kv_tokens: int | None = None) -> None:
        self.size = size
        self.kv_tokens = kv_tokens
        self.tokens = 0
        self.alone: Claim | None = None
        self.cold: dict[int, None] = dict.fromkeys(reversed(range(size)))  # free; the last one goes first
        self.warm: OrderedDict[int, object] = OrderedDict()  # free: id -> who left it; the first goes first
        self.retired = 0  # of the ids that are held, how many will not come back

    @property
    def free(self) -> int:
        """How many ids nobody holds."""
        return len(self.cold) + len(self.warm)

    @property
    def slots(self) -> int:
        """How many slots are charged to the holders."""
        if self.alone is None or self.alone.charge is None:
            return self.size - self.free + self.retired
        return self.alone.charge.slots

    def share(self, cost: Cost) -> float:
        """Return which part of the pool a cost takes, by slots or tokens, whichever is more.

        A part above 1 is larger than the pool.
        """
        by_slots = cost.slots / self.size
        return by_slots if self.kv_tokens is None else max(by_slots, cost.tokens / self.kv_tokens)

    def charge_for(self, cost: Cost) -> Cost | None:
        """Return what ``cost`` would be charged if it were granted now; None = it does not fit."""
        limit = self.kv_tokens
        if cost.slots > self.size or (limit is not None and cost.tokens > limit):
            whole = Cost(self.size, cost.tokens if limit is None else limit)
            return None if self.slots or self.tokens else whole
        if self.alone is not None or cost.slots > self.free - self.retired:
            return None
        return None if limit is not None and self.tokens + cost.tokens > limit else cost

    def take(self, claim: Claim) -> bool:
        """Charge the claim its cost and give it slot ids if it fits, and say whether it did."""
        charge = self.charge_for(claim.cost)
        if charge is None:
            return False
        if charge is not claim.cost:
            self.alone = claim
        claim.charge = charge
        self.tokens += charge.tokens
        claim.slots = self.take_ids(claim.cost.slots, claim.preferred)
        return True

    def give_back(self, claim: Claim, slots: Iterable[int], left_by: object) -> None:
        """Take back what the claim was charged. Its ids stay warm if ``left_by`` may come back to them."""
        charge, claim.charge = claim.charge, None
        assert charge is not None
        self.tokens -= charge.tokens
        if self.alone is claim:
            self.alone = None
        self.free_ids(slots, left_by)

    def recharge(self, claim: Claim, cost: Cost) -> bool:
        """Change a holder's cost where it stands, and say whether that fits. Its slots stay the same."""
        if cost == claim.cost:
            return True
        if cost.slots != claim.cost.slots or self.alone is not None or self.share(cost) > 1:
            return False
        charge = claim.charge  # not always its cost: a child may have it from its parent
        assert charge is not None
        tokens = self.tokens - charge.tokens + cost.tokens
        if self.kv_tokens is not None and tokens > max(self.tokens, self.kv_tokens):
            return False
        claim.cost, claim.charge = cost, Cost(charge.slots, cost.tokens)
        self.tokens = tokens
        return True

    def take_ids(self, count: int, preferred: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Take ``count`` free ids, or all, those of ``preferred`` first where they are free."""
        taken = [slot for slot in dict.fromkeys(preferred) if slot in self.cold or slot in self.warm][:count]
        for slot in taken:
            if self.cold.pop(slot, self) is self:
                del self.warm[slot]
        while len(taken) < min(count, self.size):
            taken.append(self.cold.popitem()[0] if self.cold else self.warm.popitem(last=False)[0])
        return tuple(taken)

    def free_ids(self, slots: Iterable[int], left_by: object = None) -> None:
        """Free ``slots``, warm if somebody who may come back left them. Ids above the size retire."""
        for slot in slots:
            if slot >= self.size:
                self.retired -= 1
            elif left_by is None:
                self.cold[slot] = None
            else:
                self.warm[slot] = left_by

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
