"""Connections to backends, and why there is none."""

from __future__ import annotations

import os
import socket
import ssl
from ipaddress import ip_address
from typing import Final

import trio

_UNKNOWN_NAME: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


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
        try:
            return await trio.open_tcp_stream(host, port)
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, "Name not known") from error
    connecting = trio.socket.socket(trio.socket.AF_INET if version == 4 else trio.socket.AF_INET6)
    try:
        await connecting.connect((host, port))
    except BaseException:
        connecting.close()
        raise
    return trio.SocketStream(connecting)


def reason_of(error: BaseException | None) -> str:
    """Return in a few words why a connection has failed, without its address; "" if no cause says it."""
    match error:
        case BaseExceptionGroup():  # one for each address of a name
            return reason_of(error.exceptions[0])
        case socket.gaierror() if error.errno in _UNKNOWN_NAME:
            return "no such host"
        case socket.gaierror(strerror=str(said)) | ssl.SSLError(strerror=str(said)):
            return said
        case OSError(errno=int(number)):  # whose text may have the address in it
            return os.strerror(number).lower()
        case EOFError():
            return "connection closed"
    return "" if error is None else reason_of(error.__cause__ or error.__context__)
