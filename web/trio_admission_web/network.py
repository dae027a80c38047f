"""Connections to backends."""

from __future__ import annotations

from ipaddress import ip_address

import trio


async def connect(host: str, port: int) -> trio.SocketStream:
    """Connect over TCP. Blocks until the connection is there.

    There is one for each request, mostly to a numeric address. That needs nothing of what
    `trio.open_tcp_stream` does for a name, which may have several, and then costs half.

    Raises:
        OSError: There is nobody.
    """
    try:
        version = ip_address(host).version
    except ValueError:
        return await trio.open_tcp_stream(host, port)
    socket = trio.socket.socket(trio.socket.AF_INET if version == 4 else trio.socket.AF_INET6)
    try:
        await socket.connect((host, port))
    except BaseException:
        socket.close()
        raise
    return trio.SocketStream(socket)
