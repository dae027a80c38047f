"""Put our listener, our transport and our protocols in the place of Hypercorn's."""

from __future__ import annotations

import hypercorn.protocol
import hypercorn.trio.run
import hypercorn.trio.tcp_server

from .http1 import HTTP1Protocol
from .http2 import HTTP2Protocol
from .listener import TrioForHypercorn
from .transport import RequestTasks, Transport

# Hypercorn looks these names up at each connection, so it does not matter who starts it:
# `hypercorn.trio.serve`, or the command `hypercorn -k trio`, which imports the application first.
REPLACEMENTS = (
    (hypercorn.trio.run, "TCPServer", Transport),
    (hypercorn.trio.run, "trio", TrioForHypercorn()),
    (hypercorn.trio.tcp_server, "TaskGroup", RequestTasks),
    (hypercorn.protocol, "H11Protocol", HTTP1Protocol),
    (hypercorn.protocol, "H2Protocol", HTTP2Protocol),
)


def install() -> None:
    """Make every Trio server that Hypercorn starts in this process from now on use our classes."""
    for owner, name, ours in REPLACEMENTS:
        setattr(owner, name, ours)
