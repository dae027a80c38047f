"""Let many clients of mixed manners at a gateway at once, and see that nothing is left of them.

    python -m bench.chaos [--clients 600] [--seed 1]

A fake llama-server and the gateway run in this process, on loopback. The clients ask on every route, with and
without a stream; some read all, some leave in the line, in the middle or with half a body sent, with FIN or
RST; some send what is no request, and some are cancelled by their id. Printed is how they ended. The exit
status is 1 if anything is held, waiting, open or running afterwards, or if the server ever got more requests
than it has slots.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections import Counter

import trio

from tests.support.chaos import Chaos
from tests.support.serving import descriptors
from tests.support.stage import stage
from trio_admission import AdmissionConfig
from trio_admission.testing.fake_llama_server import FakeLlamaServer


async def run(clients: int, seed: int) -> Counter[str]:
    before = descriptors()
    llama = FakeLlamaServer(total_slots=4, words=20, interval=0.005, infill=True)
    admission = AdmissionConfig(keepalive_interval=0.2, max_waiting=200)
    async with stage(llama, admission=admission) as both:
        ends = await Chaos(both.server, random.Random(seed)).run(clients)
    if llama.max_in_flight > llama.total_slots:
        raise AssertionError(f"{llama.max_in_flight} requests were upstream at once")
    if descriptors() > before:
        raise AssertionError(f"{descriptors() - before} file descriptors are left")
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    ends: Counter[str] = Counter()
    try:
        ends = trio.run(run, args.clients, args.seed)
    except* (AssertionError, trio.TooSlowError) as group:
        print("something is left:", *group.exceptions)
    print(json.dumps(dict(sorted(ends.items())), indent=2))
    return 0 if ends else 1


if __name__ == "__main__":
    sys.exit(main())
