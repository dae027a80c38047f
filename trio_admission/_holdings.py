"""What is held of a pool's slots and KV tokens, and whether something more fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._claim import NOTHING
from ._slots import SlotIds

if TYPE_CHECKING:
    from ._claim import Claim
    from ._records import Cost


class Holdings:
    """The sums of what the holders are charged, and the slot ids that they have.

    ``slots`` and ``tokens`` never exceed the pool, except after a shrink. A claim that is larger than the
    pool is charged the whole of it and is ``alone``.
    """

    def __init__(self, size: int, kv_tokens: int | None) -> None:
        self.ids = SlotIds(size)
        self.kv_tokens = kv_tokens
        self.slots = 0
        self.tokens = 0
        self.alone: Claim | None = None

    def fits(self, cost: Cost) -> bool:
        """Say whether ``cost`` could be granted now."""
        if self.alone is not None:
            return False
        if self._larger(cost):
            return not self.slots and not self.tokens
        return self.slots + cost.slots <= self.ids.size and (
            self.kv_tokens is None or self.tokens + cost.tokens <= self.kv_tokens
        )

    def take(self, claim: Claim) -> None:
        """Charge the claim its cost, and give it slot ids."""
        cost, size = claim.cost, self.ids.size
        if self._larger(cost):
            self.alone = claim
            charge = (size, self.kv_tokens or 0)
        else:
            charge = (cost.slots, 0 if self.kv_tokens is None else cost.tokens)
        claim.charge = charge
        self.slots += charge[0]
        self.tokens += charge[1]
        claim.slots = self.ids.take(min(cost.slots, size), claim.preferred)

    def give_back(self, claim: Claim, slots: tuple[int, ...], left_by: object) -> None:
        """Take back what the claim was charged. Its ids stay warm if ``left_by`` may come back to them."""
        self.slots -= claim.charge[0]
        self.tokens -= claim.charge[1]
        claim.charge = NOTHING
        if self.alone is claim:
            self.alone = None
        self.ids.put_back(slots, left_by)

    def pass_on(self, claim: Claim, heir: Claim) -> None:
        """Let the charge of one claim be another's."""
        heir.charge, claim.charge = claim.charge, NOTHING
        if self.alone is claim:
            self.alone = heir

    def recharge(self, claim: Claim, cost: Cost) -> bool:
        """Change a holder's cost where it stands, and say whether that fits. Its slots stay the same."""
        if cost == claim.cost:
            return True
        if cost.slots != claim.cost.slots or self.alone is not None or self._larger(cost):
            return False
        more = 0 if self.kv_tokens is None else cost.tokens - claim.charge[1]
        if self.kv_tokens is not None and more > 0 and self.tokens + more > self.kv_tokens:
            return False
        claim.cost = cost
        claim.charge = (claim.charge[0], claim.charge[1] + more)
        self.tokens += more
        return True

    def share(self, claim: Claim) -> float:
        """Return which part of the pool the claim takes, by slots or by tokens, whichever is more."""
        slots, tokens = claim.cost.slots, claim.cost.tokens
        by_slots = min(1.0, slots / self.ids.size)
        return max(by_slots, min(1.0, tokens / self.kv_tokens)) if self.kv_tokens and tokens else by_slots

    def check(self, holders: list[Claim]) -> None:
        """Assert that the sums are the sums, and that no id has two holders."""
        self.ids.check()
        assert self.slots == sum(claim.charge[0] for claim in holders), "held slots are not the holders' sum"
        assert self.tokens == sum(claim.charge[1] for claim in holders), (
            "held tokens are not the holders' sum"
        )
        owned = [slot for claim in holders if claim.lender is None for slot in claim.slots]
        assert len(owned) == len(set(owned)), f"a slot is held twice: {holders}"
        assert set(owned) == self.ids.out, f"slots are out that nobody holds: {self.ids}"
        if self.alone is not None:
            assert self.alone in holders, "the claim that runs alone holds nothing"
            charged = [claim for claim in holders if claim.charge != NOTHING]
            assert charged == [self.alone], f"somebody joined the claim that runs alone: {charged}"

    def _larger(self, cost: Cost) -> bool:
        return cost.slots > self.ids.size or (self.kv_tokens is not None and cost.tokens > self.kv_tokens)
