"""Connections to backends: where they lead to, and why there is none."""

from __future__ import annotations

import os
import socket
import ssl
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

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


def leads_to(url: str, host: str, port: int) -> bool:
    """Say whether who connects to an address meets who listens at a host and port of this machine.

    Names are looked up, which blocks, if the ports are the same.
    """
    there = urlsplit(url)
    if port != (there.port or (443 if there.scheme == "https" else 80)):
        return False
    ours, theirs = _addresses(host), {_reached(each) for each in _addresses(there.hostname or "")}
    return any(
        each in ours or any(own.is_unspecified and own.version == each.version for own in ours)
        for each in theirs
        if _is_here(each)
    )


def is_host(host: str) -> bool:
    """Say whether a host has an address; blocks while a name is looked up."""
    return bool(_addresses(host))


def _addresses(host: str) -> set[IPv4Address | IPv6Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # which is told when it is to be used
        return set()
    return {ip_address(address[0]) for *_, address in found}


def _reached(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return where a connection to it goes."""
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return ip_address("127.0.0.1" if address.version == 4 else "::1")
    return address


def _is_here(address: IPv4Address | IPv6Address) -> bool:
    with socket.socket(
        socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM
    ) as probe:
        try:
            probe.bind((str(address), 0))  # the system lets nobody take the address of another machine
        except OSError:
            return False
    return True


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
