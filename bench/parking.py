"""What it costs to come back from a park: through the gateway, and from the server directly, in one run.

    python -m bench.parking [--agents 4] [--slots 2] [--rounds 2] [--json FILE]

Agents that share a long system prompt and a tool take turns on the small model. Each lets the model call the
tool, is gone while all the others have their turn, and comes back with the result for the next call. So at
each return the server could still know all that it knew at the park, if nobody had used its slot.

Directly, the agents talk to the server as it is started by default: four slots that share their KV cache, and
the RAM cache. The gateway starts its own with fewer slots than there are agents. What counts is tokens, as
the server accounts for them; a busy machine changes nothing but the seconds until an answer begins, files
included. The exit status is 1 if one of the two shares is not what it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2
import trio

from tests.support.agent import Agent, Turn
from tests.support.llama_server import COMMAND
from tests.support.serving import serving, until
from trio_admission_web.app import create_app
from trio_admission_web.engine import find_model, run_command
from trio_admission_web.settings import BackendSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

# Words that all agents begin with, and words of each one's own: about 530 and 410 tokens.
SHARED: Final = 430
OWN: Final = 260
CONTEXT: Final = 2048
REACH: Final = 0.05
DIRECT_REACH: Final = 0.40


@dataclass
class Returns:
    """What all returns from a park have cost together."""

    count: int = 0
    parked: int = 0
    recomputed: int = 0
    new: int = 0
    seconds: float = 0.0
    shares: list[float] = field(default_factory=list)

    def add(self, left: Turn, back: Turn) -> None:
        """Add one.

        Args:
            left: The turn before the park.
            back: The one after it.
        """
        known = min(back.cached, left.context)
        self.count += 1
        self.parked += left.context
        self.recomputed += left.context - known
        self.new += max(0, back.cached + back.prompt - left.context)
        self.seconds += back.seconds
        self.shares.append((left.context - known) / left.context)

    @property
    def share(self) -> float:
        """Of the parked context, what was computed again."""
        return self.recomputed / self.parked


async def converse(url: str, key: str, agents: int, rounds: int) -> Returns:
    """Let the agents take turns, and return what their returns have cost."""
    returns = Returns()
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=600, trust_env=False) as client:
        everybody = [
            Agent.named(client, f"agent{number}", words=OWN, shared=SHARED) for number in range(agents)
        ]
        left = [await agent.call() for agent in everybody]
        for number in range(rounds):
            for index, agent in enumerate(everybody):
                back = await agent.bring(f"Result {number}.", again=True)
                returns.add(left[index], back)
                left[index] = back
    return returns


async def directly(agents: int, rounds: int) -> Returns:
    """Talk to the server as it is started by default."""
    model = find_model()
    command = [*COMMAND, "-m", str(model.path), "-np", "4", "-kvu", "-c", "8192"]
    command += ["--chat-template-file", str(model.chat_template)]
    async with trio.open_nursery() as nursery:
        engine = await nursery.start(run_command, command)
        returns = await converse(engine.url, engine.api_key, agents, rounds)
        nursery.cancel_scope.cancel()
    return returns


async def through_the_gateway(agents: int, rounds: int, slots: int) -> Returns:
    """Talk to the gateway, which has a server with so many slots."""
    backend = BackendSettings(gguf="default", slots=slots, context_per_slot=CONTEXT)
    app = create_app(Settings(backends=(backend,), max_parked=agents))
    async with serving(app) as server:
        await until(lambda: app.gateway.backend.condition.serves, seconds=60)
        return await converse(server.url, "none", agents, rounds)


def line(name: str, returns: Returns) -> str:
    """Return one row."""
    return (
        f"{name:22}{returns.count:8}{returns.parked:10}{returns.recomputed:12}{returns.share:9.1%}"
        f"{max(returns.shares):9.1%}{returns.new:8}{returns.seconds / returns.count:12.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--slots", type=int, default=2, help="of the gateway's server")
    parser.add_argument("--rounds", type=int, default=2, help="returns of each agent")
    parser.add_argument("--json", type=Path, help="write the figures there")
    said = parser.parse_args(arguments)
    direct = trio.run(directly, said.agents, said.rounds)
    gateway = trio.run(through_the_gateway, said.agents, said.rounds, said.slots)
    names = f"{'':22}{'returns':>8}{'parked':>10}{'recomputed':>12}{'share':>9}{'worst':>9}{'new':>8}"
    print(f"{said.agents} agents; the gateway's server has {said.slots} slots, the other one 4\n")
    print(f"{names}{'seconds':>12}")
    print(line("server, by default", direct))
    print(line("through the gateway", gateway))
    print(f"\nto reach: through the gateway at most {REACH:.0%}, from the server at least {DIRECT_REACH:.0%}")
    if said.json is not None:
        said.json.write_text(json.dumps({"direct": asdict(direct), "gateway": asdict(gateway)}, indent=1))
    return 0 if gateway.share <= REACH and direct.share >= DIRECT_REACH else 1


if __name__ == "__main__":
    sys.exit(main())
