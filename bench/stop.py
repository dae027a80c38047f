"""SIGTERM under a load of many clients: what became of each, and how long the gateway took to stop.

    python -m bench.stop [--clients 200] [--deadline 30]

The gateway runs as ``trio-admission serve`` does, in front of a scripted llama-server with four slots. Half
of the clients stream. All have come when the signal is sent, but for a tenth that come while the gateway
stops. The exit status is 1 unless each got a whole answer or a clear refusal, in bounded time.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter

import trio

from tests.support.command import running
from tests.support.verdict import visit
from trio_admission.testing.fake_llama_server import FakeLlamaServer

CLEAR = {"answered", "draining", "refused"}
LEEWAY = 5.0  # seconds beyond the deadline: last words, and the end of the process


async def main(clients: int, deadline: float) -> int:
    became: Counter[str] = Counter()
    llama = FakeLlamaServer(total_slots=4, words=10, interval=0.02)
    async with llama, llama.listening() as upstream, trio.open_nursery() as nursery:
        serve = ("trio_admission_web", "serve", "--port", "0", "--upstream", upstream)
        flags = ("--max-waiting", "0", "--shutdown-deadline", str(deadline))
        async with running(*serve, *flags) as command:

            async def come(number: int, after: float = 0) -> None:
                await trio.sleep(after)
                became[await visit(command.url, stream=number % 2 == 0)] += 1

            late = clients // 10
            for number in range(clients - late):
                nursery.start_soon(come, number)
            await trio.sleep(2)
            command.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            for number in range(late):
                nursery.start_soon(come, number, number / late)
            with trio.fail_after(deadline + LEEWAY):
                status = await command.process.wait()
            seconds = time.monotonic() - begun
    print(f"exit status {status} {seconds:.1f} s after SIGTERM; {clients} clients: {dict(became)}")
    good = status == 0 and became.keys() <= CLEAR and became.total() == clients
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds")
    args = parser.parse_args()
    sys.exit(trio.run(main, args.clients, args.deadline))
