"""Files that keep what a slot remembers while somebody else uses it: when they pay, and where they are.

llama-server writes and reads them, and never deletes one. Both stop all decoding for as long as they take, so
they must be worth it. With a sliding window the server reads a file and computes everything again all the
same; that shows in the first answer after a read.
"""

from __future__ import annotations

import json
import logging
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .probing import read_json
from .problems import ProblemError

if TYPE_CHECKING:
    from pathlib import Path

    from .upstream import Upstream

log: Final = logging.getLogger(__name__)

# Less is computed again in a fraction of one batch (512 tokens), and a file costs two more requests.
_SHORTEST: Final = 256
# What the counts of tokens may differ by: the last one of an answer is not computed, drafts may have been.
_SLACK: Final = 16
# A gigabyte takes a second or two; a slow disk is not worth more.
_PATIENCE: Final = 10.0
# The weight of the newest figure in an average.
_NEWEST: Final = 0.2
# How much dearer than computing files still look after they were passed over once more: they are tried again
# after a while, since one slow moment of the disk must not decide for ever.
_FORGIVENESS: Final = 0.9


@final
class Worth:
    """Whether files are quicker than computing again, from what both took so far."""

    def __init__(self) -> None:
        self._ms_per_token: dict[str, float] = {}

    def learn(self, what: str, ms: float, tokens: int) -> None:
        """Take note of what ``save``, ``restore`` or ``prefill`` has taken."""
        if tokens > 0:
            new = ms / tokens
            old = self._ms_per_token.setdefault(what, new)
            self._ms_per_token[what] = old + _NEWEST * (new - old)

    def pays(self, tokens: int) -> bool:
        """Whether to save so many tokens; yes if nothing is known against it."""
        if tokens < _SHORTEST:
            return False
        known = self._ms_per_token
        files = known.get("save", 0.0) + known.get("restore", 0.0)
        if files <= known.get("prefill", files):
            return True
        for what in known.keys() - {"prefill"}:
            known[what] *= _FORGIVENESS
        return False


@final
class SlotFiles:
    """The files of one backend. Their names begin alike, and are made of nothing that a client has said.

    Args:
        upstream: The server, started with ``--slot-save-path`` and this directory.
        backend: The backend's name.
        directory: On this machine, and of no other gateway that has a backend of that name.
        limit: Bytes that all of them together may have; a file that is being written may be too much.
    """

    def __init__(self, upstream: Upstream, backend: str, directory: Path, limit: int) -> None:
        self.worth = Worth()
        self._upstream = upstream
        self._backend = backend
        self._directory = directory
        self._limit = limit
        self._prefix = f"trio-admission-{blake2b(backend.encode(), digest_size=6).hexdigest()}-"
        self._numbers = count(1)
        self._sizes: dict[str, int] = {}  # the oldest first
        self._is_off = False

    def pays(self, tokens: int) -> bool:
        """Whether to save so many tokens."""
        return not self._is_off and self.worth.pays(tokens)

    async def save(self, slot: int, tokens: int) -> str | None:
        """Save what an idle slot has. Blocks for 10 s at most, and nothing interrupts that.

        Args:
            slot: The slot.
            tokens: How many it has.

        Returns:
            The file's name; None if there is none, or if the slot has something else.
        """
        name = f"{self._prefix}{next(self._numbers)}.bin"
        status, facts = await self._ask(slot, "save", name)
        saved = _count(facts, "n_saved")
        if status in {400, 501}:
            self._give_up(f"it answers {status} when it shall save one")
        elif saved and not (self._directory / name).exists():  # then it could never be deleted
            self._give_up(f"it does not save them to {self._directory}")
        elif abs(saved + 1 - tokens) > _SLACK:
            self.delete(name)
        else:
            self._sizes[name] = _count(facts, "n_written")
            self.worth.learn("save", _ms(facts, "save_ms"), saved)
            return name
        return None

    async def restore(self, slot: int, name: str) -> int:
        """Fill an idle slot from a file, and delete that. Blocks for 10 s at most, and nothing interrupts it.

        Returns:
            How many tokens the slot has then; 0 if the server cannot use the file.
        """
        _, facts = await self._ask(slot, "restore", name)
        restored = _count(facts, "n_restored")
        self.worth.learn("restore", _ms(facts, "restore_ms"), restored)
        self.delete(name)
        return restored

    def too_many(self) -> list[str]:
        """Return the oldest files, as many as are more than the limit allows; they are deleted."""
        found = []
        while self._sizes and sum(self._sizes.values()) > self._limit:
            found.append(next(iter(self._sizes)))
            self.delete(found[-1])
        return found

    def judge(self, restored: int, cached: int) -> None:
        """Take note of how many tokens the server has used of those that were restored just before."""
        if restored and not cached:
            self._give_up("the model cannot go on from one (for a sliding window, try --swa-full)")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._sizes.pop(name, None)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            self._give_up(f"{name} cannot be deleted: {error.strerror}")

    def clear(self) -> None:
        """Delete all of them, those of an earlier run too."""
        self._sizes.clear()
        for each in self._directory.glob(f"{self._prefix}*"):
            self.delete(each.name)

    def _give_up(self, reason: str) -> None:
        if not self._is_off:
            self._is_off = True
            log.warning("backend %s: slots are no longer saved to files: %s", self._backend, reason)

    async def _ask(self, slot: int, action: str, name: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON of the answer; 0 if there is no answer."""
        # Shielded: what the server has begun goes on anyway, and its file must be known.
        with trio.move_on_after(_PATIENCE, shield=True):
            try:
                answer = await self._upstream.fetch(
                    "POST",
                    f"/slots/{slot}",
                    query=f"action={action}".encode(),
                    headers=[(b"content-type", b"application/json")],
                    body=json.dumps({"filename": name}).encode(),
                )
            except ProblemError:
                return 0, {}
            facts = read_json(answer.body)
            return answer.status, facts if answer.status == 200 and isinstance(facts, dict) else {}
        return 0, {}


def _count(facts: dict[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if type(value) is int and value > 0 else 0


def _ms(facts: dict[str, Any], name: str) -> float:
    timings = facts.get("timings")
    value = timings.get(name) if isinstance(timings, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0
