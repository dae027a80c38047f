"""What Hypercorn and Quart need before they may face a network.

    guard           refuses to run on a Hypercorn that the rest was not written for
    listener        lets in all who have come
    transport       one TCP connection: failures stay inside, writes have a deadline
    http1           the protocol on top of it: a disconnect is always seen
    hardening       puts these three in place of Hypercorn's own, and switches HTTP/2 off
    body            a request body that is bounded while it arrives
    connection      one request: its nursery, its body's deadline, and the end of its answer
    lifespan        background tasks of the application, whose crash ends the process
    testing         a test client that does not hang after a disconnect
    app             ServingApp, which ties them together

Importing anything from here checks Hypercorn first; the first `ServingApp` that is made changes it.
"""

from __future__ import annotations

from .guard import check_hypercorn

check_hypercorn()
