"""What Hypercorn and Quart need before they may face a network.

    guard           refuses to run on a Hypercorn that the rest was not written for
    listener        lets in all who have come
    transport       one TCP connection: failures stay inside, writes have a deadline
    http1           a protocol on top of it: a disconnect is always seen
    http2           another one: what is wrong with one request is never the end of others
    http2_...       its parts: the connection as h2 has it, one request of it, what it sends
    hardening       puts these in place of Hypercorn's own
    body            a request body that is bounded while it arrives
    connection      one request: its nursery, its body's deadline, and the end of its answer
    lifespan        background tasks of the application, whose crash ends the process
    testing         a test client that does not hang after a disconnect
    refusal         the answer to what is no request
    app             ServingApp, which ties them together

Importing anything from here checks Hypercorn first; the first `ServingApp` that is made changes it.
"""

from __future__ import annotations

from .guard import check_hypercorn

check_hypercorn()
