"""What is held of a pool's slots and KV tokens, and whether something more fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._records import Cost
from ._slots import SlotIds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._claim import Claim


class Holdings:
    """The sums of what the holders are charged, and the slot ids that they have.

    ``slots`` and ``tokens`` never exceed the pool, except after a shrink. A claim that is larger than the
    pool is charged the whole of it and is ``alone``. Tokens are summed up even while they are not limited;
    slots need no sum, since what the others are charged is the ids that they have.
    """

    def __init__(self, size: int, kv_tokens: int | None) -> None:
        self.ids = SlotIds(size)
        self.kv_tokens = kv_tokens
        self.tokens = 0
        self.alone: Claim | None = None

    @property
    def slots(self) -> int:
        """How many slots are charged to the holders."""
        if self.alone is None or self.alone.charge is None:
            return self.ids.held
        return self.alone.charge.slots

    def share(self, cost: Cost) -> float:
        """Return which part of the pool a cost takes, by slots or tokens, whichever is more.

        A part above 1 is larger than the pool.
        """
        by_slots = cost.slots / self.ids.size
        return by_slots if self.kv_tokens is None else max(by_slots, cost.tokens / self.kv_tokens)

    def charge_for(self, cost: Cost) -> Cost | None:
        """Return what ``cost`` would be charged if it were granted now; None = it does not fit."""
        size, limit = self.ids.size, self.kv_tokens
        if cost.slots > size or (limit is not None and cost.tokens > limit):
            whole = Cost(size, cost.tokens if limit is None else limit)
            return None if self.ids.held or self.tokens else whole
        if self.alone is not None or cost.slots > self.ids.room:
            return None
        return None if limit is not None and self.tokens + cost.tokens > limit else cost

    def fits(self, cost: Cost) -> bool:
        """Say whether ``cost`` could be granted now."""
        return self.charge_for(cost) is not None

    def take(self, claim: Claim) -> bool:
        """Charge the claim its cost and give it slot ids if it fits, and say whether it did."""
        charge = self.charge_for(claim.cost)
        if charge is None:
            return False
        if charge is not claim.cost:
            self.alone = claim
        claim.charge = charge
        claim.share = charge.slots / self.ids.size if self.kv_tokens is None else self.share(charge)
        self.tokens += charge.tokens
        claim.slots = self.ids.take(claim.cost.slots, claim.preferred)
        return True

    def give_back(self, claim: Claim, slots: Iterable[int], left_by: object) -> None:
        """Take back what the claim was charged. Its ids stay warm if ``left_by`` may come back to them."""
        charge, claim.charge = claim.charge, None
        assert charge is not None
        self.tokens -= charge.tokens
        if self.alone is claim:
            self.alone = None
        self.ids.put_back(slots, left_by)

    def pass_on(self, claim: Claim, heir: Claim) -> None:
        """Let the charge of one claim be another's."""
        heir.charge, claim.charge = claim.charge, None
        if self.alone is claim:
            self.alone = heir

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

    def check(self, holders: list[Claim]) -> None:
        """Assert that the sums are the sums, and that no id has two holders."""
        charges = [claim.charge for claim in holders if claim.charge is not None]
        assert self.slots == sum(charge.slots for charge in charges), "held slots are not the holders' sum"
        assert self.tokens == sum(charge.tokens for charge in charges), "held tokens are not the holders' sum"
        owned = [slot for claim in holders if claim.lender is None for slot in claim.slots]
        assert len(owned) == len(set(owned)), f"a slot is held twice: {holders}"
        self.ids.check(set(owned))
        if self.alone is not None:
            assert self.alone in holders, "the claim that runs alone holds nothing"
            assert charges == [self.alone.charge], f"somebody joined the claim that runs alone: {holders}"
