"""The child process in which llama.cpp runs. `embedded` starts it; nothing imports it.

It has a process of its own because the server's constructor holds the GIL while the model loads, and because
its destructor waits for ever while a request is open.

It loads the model that its one JSON argument describes, writes one JSON line with its address, and serves
until its standard input ends, which also happens when its parent is killed. It handles no signal: SIGTERM
ends it at once, even while it loads, and there is nothing in it to save. But when its standard input ends,
nobody else is left to remove what was saved of its slots.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

import xllamacpp  # type: ignore[import-untyped]


def _params(options: dict[str, Any]) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    # By the environment, because every user of the machine can read a command line.
    params.api_keys = [os.environ["TRIO_ADMISSION_ENGINE_API_KEY"]]
    params.model.path = options["model"]
    params.model_alias = {options["name"]}
    if options["chat_template"] is not None:
        params.chat_template = Path(options["chat_template"]).read_text(encoding="utf-8")
    params.n_parallel = options["slots"]
    params.n_ctx = options["slots"] * options["context_per_slot"]
    params.kv_unified = options["kv_unified"]
    if options["threads"] is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    if options["slot_save_path"] is not None:
        params.slot_save_path = options["slot_save_path"] + "/"  # it puts file names right behind
    params.n_batch = 512  # a cancelled prompt holds its slot until the batch is through
    # The RAM cache of prompts overwrites a running slot when a request is pinned to it.
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.sse_ping_interval = 10  # seconds
    params.ui = False
    params.verbosity = 1  # errors only
    return params


def main() -> None:
    """Serve until standard input ends."""
    ready = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever C++ prints must not be taken for the address
    options = json.loads(sys.argv[1])
    try:
        server = xllamacpp.Server(_params(options))
    except RuntimeError as error:
        sys.exit(str(error))  # the reason stands above it, in the log
    print(json.dumps({"url": server.listening_address}), file=ready, flush=True)
    sys.stdin.buffer.read()
    if options["forgets_slots"]:
        rmtree(options["slot_save_path"], ignore_errors=True)
    os._exit(0)  # not the destructor: see above


if __name__ == "__main__":
    main()
