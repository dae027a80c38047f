"""Runs a llama-server that must not outlive the gateway. `command` starts it; nothing imports it.

It starts the program that its arguments name, and ends as that does. When its standard input ends, the
gateway has been killed without a chance to stop anything; then it kills its whole process group. The kernel's
own way to do that (PR_SET_PDEATHSIG) looks at the thread that has started the child, and Trio starts children
in threads that come and go.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the program and exit with its status."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)  # meant for the program, which is in the same process group
    try:
        program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603 - what the operator said
    except OSError as error:
        sys.exit(f"{sys.argv[1]} cannot be started: {error.strerror}")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = program.wait()
    sys.exit(status if status >= 0 else 128 - status)  # as a shell says which signal it was


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
