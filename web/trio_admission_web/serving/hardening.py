"""Put our listener, our transport and our HTTP/1 in the place of Hypercorn's.

HTTP/2 is switched off: TLS does not offer it, and a client that begins with it gets 505. Hypercorn 0.18's
takes a whole connection down for a late frame on one stream, and buffers without bound for a client that
grants no window.
"""

from __future__ import annotations

import hypercorn.protocol
import hypercorn.trio.run
import hypercorn.trio.tcp_server
from hypercorn.config import Config

from .http1 import HTTP1Protocol
from .listener import TrioForHypercorn
from .transport import RequestTasks, Transport

# Hypercorn looks these names up at each connection, so it does not matter who starts it:
# `hypercorn.trio.serve`, or the command `hypercorn -k trio`, which imports the application first.
REPLACEMENTS = (
    (hypercorn.trio.run, "TCPServer", Transport),
    (hypercorn.trio.run, "trio", TrioForHypercorn()),
    (hypercorn.trio.tcp_server, "TaskGroup", RequestTasks),
    (hypercorn.protocol, "H11Protocol", HTTP1Protocol),
    (hypercorn.protocol, "H2Protocol", HTTP1Protocol),
    (Config, "alpn_protocols", ["http/1.1"]),
)


def install() -> None:
    """Make every Trio server that Hypercorn starts in this process from now on use our classes."""
    for owner, name, ours in REPLACEMENTS:
        setattr(owner, name, ours)
