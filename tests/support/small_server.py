"""Imitates the life of a llama-server without any model: a script that answers /health, and ends as told.

Its first arguments are what is special about it:

* ``loads:N``: the first N questions for its health are answered with 503;
* ``breaks``: it ends with status 3 before it listens;
* ``stubborn:N``: it ignores the first N signals to end;
* ``notes:FILE``: it makes this file when it obeys one.

It writes its key to standard output, and its arguments to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-P", str(Path(__file__)))


class Health(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    loads = 0

    def do_GET(self) -> None:
        status = 503 if Health.loads else 200
        Health.loads -= Health.loads > 0
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main() -> None:
    *special, _, host, _, port = sys.argv[1:]
    print("key", os.environ["LLAMA_API_KEY"], flush=True)
    print("arguments", *sys.argv[1:], file=sys.stderr, flush=True)
    told = dict(each.partition(":")[::2] for each in special)
    if "breaks" in told:
        sys.exit(3)
    Health.loads = int(told.get("loads", 0))
    ignored = int(told.get("stubborn", 0))

    def end(*_: object) -> None:
        nonlocal ignored
        if ignored:
            ignored -= 1
            return
        if "notes" in told:
            Path(told["notes"]).touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    HTTPServer((host, int(port)), Health).serve_forever()


if __name__ == "__main__":
    main()
