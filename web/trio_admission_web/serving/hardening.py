"""Put our transport and protocols in the place of Hypercorn's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypercorn.protocol
import hypercorn.trio.run
import hypercorn.trio.tcp_server

from trio_admission_web.serving.http1 import HTTP1Protocol
from trio_admission_web.serving.http2 import HTTP2Protocol
from trio_admission_web.serving.transport import RequestTasks, Transport

if TYPE_CHECKING:
    from types import ModuleType

# Hypercorn looks these names up at each connection, so it does not matter who starts it:
# `hypercorn.trio.serve` or the command `hypercorn -k trio`, which imports the application first.
REPLACEMENTS: tuple[tuple[ModuleType, str, type], ...] = (
    (hypercorn.trio.run, "TCPServer", Transport),
    (hypercorn.trio.tcp_server, "TaskGroup", RequestTasks),
    (hypercorn.protocol, "H11Protocol", HTTP1Protocol),
    (hypercorn.protocol, "H2Protocol", HTTP2Protocol),
)


def install() -> None:
    """Make every Trio server that Hypercorn starts in this process from now on use our classes."""
    for module, name, ours in REPLACEMENTS:
        setattr(module, name, ours)
