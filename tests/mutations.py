"""Break each rule of the pool once, and see that a test which names that rule notices.

``python tests/mutations.py`` applies each mutation to a copy of the library, runs the tests there whose
docstrings name its rule, and prints killed or survived for each. The exit status is 1 if one survives, or
cannot be applied because the line that it changes has changed. Rules or modules choose some of them:
``python tests/mutations.py G3 _line``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.library.test_rules import rules_by_test  # noqa: E402  # the path comes first

TIMEOUT = 300  # seconds of a machine that does other things as well; the tests' own clock is virtual


@dataclass(frozen=True)
class Mutation:
    """One fault: in ``module``, the one place that reads ``old`` reads ``new``."""

    rule: str
    fault: str
    module: str
    old: str
    new: str

    def mutant(self) -> str | None:
        """Return the module's source with the fault in it; None if there is not that one place."""
        source = (ROOT / "trio_admission" / f"{self.module}.py").read_text(encoding="utf-8")
        return source.replace(self.old, self.new) if source.count(self.old) == 1 else None


MUTATIONS = [
    Mutation(
        "G1",
        "whoever leaves calls nobody in",
        "_core",
        "self.held.cool(claim.preferred, claim)\n        self._fill(now)",
        "self.held.cool(claim.preferred, claim)\n        self._settle()",
    ),
    Mutation(
        "G1",
        "a park calls nobody in",
        "_core",
        "note(EventKind.PARK_REFUSED, claim, now - claim.since)\n        self._fill(now)",
        "note(EventKind.PARK_REFUSED, claim, now - claim.since)\n        self._settle()",
    ),
    Mutation(
        "G1",
        "a resize calls nobody in",
        "_core",
        "note(EventKind.RESIZED, None)\n        self._fill(now)",
        "note(EventKind.RESIZED, None)\n        self._settle()",
    ),
    Mutation(
        "G2",
        "the waiter is woken before its grant is recorded",
        "_granting",
        'Record a grant, then wake whoever waits for it."""\n',
        'Record a grant, then wake whoever waits for it."""\n        claim.wake_up()\n',
    ),
    Mutation(
        "G3",
        "Ctrl-C may strike while a lease is given back",
        "_lease",
        "        scope.__enter__()\n        return self\n\n    @enable_ki_protection\n",
        "        scope.__enter__()\n        return self\n\n",
    ),
    Mutation(
        "G3",
        "a cancelled admit keeps its place",
        "_lease",
        "self._must_go_on()\n        except BaseException:",
        "self._must_go_on()\n        except Exception:",
    ),
    Mutation(
        "G4",
        "returning holders stand behind newcomers",
        "_line",
        "        if self.returning:\n            return next(iter(self.returning))",
        "        if self.returning and not self.newcomers:\n            return next(iter(self.returning))",
    ),
    Mutation(
        "G5",
        "somebody smaller passes the head",
        "_granting",
        "                if head is None or not held.take(head):\n                    break",
        "                if head is None or not held.take(head):\n"
        "                    others = self.line.order(now, self.held.share)\n"
        "                    head = next((other for other in others if self.held.take(other)), None)\n"
        "                if head is None:\n"
        "                    break",
    ),
    Mutation(
        "G6",
        "tokens are over-committed by one request",
        "_holdings",
        "self.tokens + cost.tokens > limit else cost",
        "self.tokens > limit else cost",
    ),
    Mutation(
        "G6",
        "somebody joins the one that runs alone",
        "_holdings",
        "if self.alone is not None or cost.slots",
        "if cost.slots",
    ),
    Mutation(
        "G7",
        "a change lets in one, though more fit",
        "_granting",
        "                self._granted(head, now)\n            if not self._lend",
        "                self._granted(head, now)\n                break\n            if not self._lend",
    ),
    Mutation(
        "G8",
        "each question for a position ranks everybody anew",
        "_granting",
        "if self._ranking is None",
        "if self._ranking is None or self._ranking",
    ),
    Mutation(
        "G8",
        "a priority that nobody has any more is looked at for ever",
        "_line",
        "            if not flow.home.flows:\n                del self._classes[flow.key[1]]\n",
        "",
    ),
    Mutation(
        "G8",
        "who is gone is remembered until its max_wait would have passed",
        "_core",
        "if len(self._deadlines) > 2 * self.line.length + 16:",
        "if False:",
    ),
    Mutation(
        "L1",
        "returning holders count for the limit",
        "_core",
        "self.line.newcomers > limit)",
        "self.line.length > limit)",
    ),
    Mutation(
        "L2",
        "the default limit has no floor",
        "_config",
        "max(self.waiting_per_slot * slots, self.min_waiting or 0)",
        "self.waiting_per_slot * slots",
    ),
    Mutation(
        "L2",
        "the limit does not follow a resize",
        "_core",
        "self.config.line_limit(self.held.size)",
        "self.config.line_limit(1)",
    ),
    Mutation(
        "L3", "a flow's limit is called the line's", "_core", '"flow" if over_flow else "line"', '"line"'
    ),
    Mutation(
        "L4",
        "a grant in the tick of the deadline comes too late",
        "_lease",
        "                    await trio.sleep_forever()\n",
        "                    await trio.sleep_forever()\n                self.core.expire()\n",
    ),
    Mutation(
        "L4",
        "a place that no task attends outlives its max_wait",
        "_core",
        "            if self.waits(claim) and not claim.granted:",
        "            if self.waits(claim) and not claim.granted and claim.wake is not None:",
    ),
    Mutation(
        "L4",
        "nothing is the answer when both times pass in the same tick",
        "_reservation",
        "            if claim.deadline <= until:\n                core.expire()",
        "            if claim.deadline < until:\n                core.expire()",
    ),
    Mutation(
        "R1",
        "retired slots are given away again",
        "_holdings",
        "            if slot >= self.size:",
        "            if slot < 0:",
    ),
    Mutation(
        "R1",
        "free shows slots that nobody could take",
        "_granting",
        "free=0 if nobody_could else held.size - held.slots",
        "free=max(0, held.size - held.slots)",
    ),
    Mutation(
        "R2",
        "a larger request makes the pool larger",
        "_holdings",
        "            self.alone = claim\n        claim.charge",
        "            self.resize(max(self.size, claim.cost.slots), set())\n"
        "            charge = claim.cost\n"
        "        claim.charge",
    ),
    Mutation("R3", "close leaves the line waiting", "_core", "        if dismiss:", "        if False:"),
    Mutation(
        "R3",
        "a pool with somebody parked counts as drained",
        "_granting",
        "return not self.holders and not self.parked and not self.line.length",
        "return not self.holders and not self.line.length",
    ),
    Mutation(
        "R4",
        "a suspended pool goes on granting",
        "_granting",
        "while not self.suspensions:",
        "while True:",
    ),
    Mutation("E1", "every move is allowed", "_states", "if state not in MOVES[move]:", "if state is None:"),
    Mutation("E2", "tokens do not come back", "_holdings", "        self.tokens -= charge.tokens\n", ""),
    Mutation(
        "E3",
        "a block that fails waits for its slot",
        "_lease",
        "        cut_by = error\n        if error is None:",
        "        cut_by = error\n        if error is None or isinstance(error, Exception):",
    ),
    Mutation(
        "E4",
        "the slot of unparked() does not go on",
        "_lease",
        "if self._claim.state in {RETURNING, HELD_AGAIN}:",
        "if self._claim.state is RETURNING:",
    ),
    Mutation(
        "E4",
        "any task may unpark",
        "_lease",
        "if self._parked._task is not trio.lowlevel.current_task():",
        "if self._parked._task is None:",
    ),
    Mutation(
        "E5",
        "a deadline that passed during the park does not count if a slot is free",
        "_lease",
        "                await trio.lowlevel.checkpoint_if_cancelled()",
        "                pass",
    ),
    Mutation(
        "E5",
        "the block goes on without its lease",
        "_lease",
        '            self._lease._scope.cancel(reason="the lease was lost in a park")\n',
        "",
    ),
    Mutation(
        "E6",
        "the new cost of a return is ignored",
        "_core",
        "            claim.cost = cost\n            self._line_up",
        "            self._line_up",
    ),
    Mutation(
        "E6",
        "who returns for less gives its place up after the tokens shrank",
        "_holdings",
        "tokens > max(self.tokens, self.kv_tokens)",
        "tokens > self.kv_tokens",
    ),
    Mutation("E7", "the formula keeps another reserve", "_budget", "threads // 8)", "threads // 4)"),
    Mutation(
        "E7",
        "a park that has ended stays claimed",
        "_core",
        "                del self.parked[claim]\n                self.budget._give_back(claim)\n",
        "                del self.parked[claim]\n",
    ),
    Mutation(
        "E8",
        "another flow's ticket is as good",
        "_core",
        "ticket is None or ticket.flow != claim.flow or",
        "ticket is None or",
    ),
    Mutation(
        "E8", "a lease issues many tickets", "_core", "        if claim.ticket is None:", "        if True:"
    ),
    Mutation(
        "E9",
        "several children borrow one slot",
        "_granting",
        "if lender.borrower is None and lender.children:",
        "if lender.children:",
    ),
    Mutation(
        "F1",
        "last come, first served",
        "_line",
        "return next(iter(self.alone.waiters), None)",
        "return next(reversed(self.alone.waiters), None)",
    ),
    Mutation(
        "F1",
        "last come, first served, in a calm pool",
        "_granting",
        "next(iter(flow.waiters))",
        "next(reversed(flow.waiters))",
    ),
    Mutation(
        "F2",
        "weights do not count",
        "_line",
        "start + share / claim.weight",
        "start + share",
    ),
    Mutation(
        "F2",
        "what a flow was charged is forgotten as soon as none of it waits",
        "_line",
        "flow.start = max(flow.home.virtual_time, flow.finish)",
        "flow.start = flow.home.virtual_time",
    ),
    Mutation("F3", "waiting does not count", "_line", "-(claim.key[1] + aged)", "-claim.key[1]"),
    Mutation("F4", "a flow may have one more in line", "_core", "> per_flow\n", "> per_flow + 1\n"),
    Mutation(
        "S1",
        "the warmest slot goes first",
        "_holdings",
        "self.warm.popitem(last=False)[0])",
        "self.warm.popitem(last=True)[0])",
    ),
    Mutation(
        "S1",
        "warm slots go before cold ones",
        "_holdings",
        "self.cold.popitem()[0] if self.cold else self.warm.popitem(last=False)[0])",
        "self.warm.popitem(last=False)[0] if self.warm else self.cold.popitem()[0])",
    ),
    Mutation(
        "S1",
        "the slot of a ticket that was used in vain stays warm",
        "_core",
        "        self.held.cool(claim.preferred, claim)\n        kind, seconds",
        "        kind, seconds",
    ),
    Mutation(
        "S2",
        "a lease of several slots gets one id",
        "_holdings",
        "self.take_ids(claim.cost.slots, claim.preferred)",
        "self.take_ids(1, claim.preferred)",
    ),
    Mutation(
        "W1",
        "returning holders are counted as waiting",
        "_granting",
        "waiting=self.line.newcomers,",
        "waiting=self.line.length,",
    ),
    Mutation(
        "W2",
        "nobody is told of a resume",
        "_core",
        "        self.announcer.note(EventKind.RESUMED, None, reason=reason)\n",
        "",
    ),
    Mutation(
        "W2", "an instrument may change the pool", "_granting", "if self.announcer.telling:", "if False:"
    ),
    Mutation("W3", "retry_after has no lower bound", "_granting", "max(1.0, expected", "max(0.0, expected"),
    Mutation(
        "W3",
        "slots do not shorten the wait",
        "_granting",
        "return place * mean / lively",
        "return place * mean",
    ),
    Mutation(
        "C1", "infinity is a timeout", "_config", "if not math.isfinite(seconds):", "if math.isnan(seconds):"
    ),
    Mutation(
        "C1",
        "the last prefix knows all variables",
        "_config",
        '_read(env, "QUEUE_PER_SLOT", _depth, _PREFIXES[:2])',
        '_read(env, "QUEUE_PER_SLOT", _depth)',
    ),
    Mutation("C2", "control cannot be turned off", "_core", "elif not self.config.enabled:", "elif False:"),
    Mutation(
        "P1",
        "a pool is forgotten while a ticket is out",
        "_pool",
        "if core.idle and not core.tickets:",
        "if core.idle:",
    ),
    Mutation(
        "P1",
        "get resizes",
        "_pool",
        "        return self._pools[name]\n\n    @enable_ki_protection\n    def discard",
        "        self._pools[name].resize(slots)\n"
        "        return self._pools[name]\n\n    @enable_ki_protection\n    def discard",
    ),
]


def tests_by_rule() -> dict[str, list[str]]:
    """Return the tests that name each rule, the long ones last."""
    root = ROOT / "tests" / "library"
    paths = {path.name: str(path.relative_to(ROOT)) for path in root.rglob("test_*.py")}
    found: dict[str, list[str]] = {}
    for name, rules in rules_by_test():
        file, test = name.split("::")
        for rule in rules:
            found.setdefault(rule, []).append(f"{paths[file]}::{test}")
    return {rule: sorted(tests, key=lambda test: "/proofs/" in test) for rule, tests in found.items()}


def outcome_of(mutation: Mutation, tests: list[str]) -> str:
    """Apply a mutation to a copy, run the tests there, and say what became of it."""
    mutant = mutation.mutant()
    if mutant is None:
        return "CANNOT BE APPLIED"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "trio_admission", copy / "trio_admission")
        shutil.copytree(ROOT / "tests" / "library", copy / "tests" / "library")
        shutil.copytree(ROOT / "tests" / "support", copy / "tests" / "support")
        shutil.copy(ROOT / "tests" / "conftest.py", copy / "tests")
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / "trio_admission" / f"{mutation.module}.py").write_text(mutant, encoding="utf-8")
        return run(copy, tests)


def run(folder: Path, tests: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PROOF_ROUGH": "1",
    }  # fmt: skip
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "HUNG"
    if result.returncode == 1:
        failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED ")]
        return f"killed by {failed[0].split('::')[-1].split(' - ')[0]}" if failed else "killed"
    return "SURVIVED" if result.returncode == 0 else f"COULD NOT BE TESTED\n{result.stdout[-2000:]}"


def main(chosen: list[str]) -> int:
    tests = tests_by_rule()
    mutations = [one for one in MUTATIONS if not chosen or one.rule in chosen or one.module in chosen]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as executor:
        outcomes = executor.map(lambda mutation: outcome_of(mutation, tests[mutation.rule]), mutations)
        survivors = 0
        for mutation, outcome in zip(mutations, outcomes, strict=True):
            survivors += not outcome.startswith("killed")
            print(f"{mutation.rule}  {mutation.fault}: {outcome}", flush=True)
    without = sorted(set(tests) - {mutation.rule for mutation in MUTATIONS})
    if without:
        print(f"no mutation of {', '.join(without)}")
    print(f"{len(mutations) - survivors} of {len(mutations)} killed")
    return 1 if survivors or without else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
