"""A stand-in for llama-server's command line: the same engine, from xllamacpp, with a few of its flags.

It is run as a script. Like the original, it takes its key from ``LLAMA_API_KEY``, listens while it loads, and
ends at SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path

COMMAND = (sys.executable, "-P", str(Path(__file__)))


def main() -> None:
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415

    parser = ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-c", "--ctx-size", type=int, default=1024)
    parser.add_argument("-kvu", "--kv-unified", action="store_true")
    parser.add_argument("--slot-save-path")
    parser.add_argument("--chat-template-file", type=Path)
    said = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.hostnames = [said.host]
    params.port = said.port
    params.api_keys = [os.environ["LLAMA_API_KEY"]]
    params.model.path = said.model
    params.n_parallel = said.parallel
    params.n_ctx = said.ctx_size
    params.kv_unified = said.kv_unified
    if said.slot_save_path is not None:
        params.slot_save_path = said.slot_save_path + "/"
    if said.chat_template_file is not None:
        params.chat_template = said.chat_template_file.read_text(encoding="utf-8")
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.ui = False
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"listening on {server.listening_address}", file=sys.stderr, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
