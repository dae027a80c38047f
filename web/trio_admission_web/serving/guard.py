"""Refuse a Hypercorn that this package was not written for."""

from __future__ import annotations

import importlib.metadata
import pkgutil

HYPERCORN = "0.18"

# What is replaced, derived from or called by the modules beside this one. All of it is private to Hypercorn.
PATCH_POINTS = (
    "hypercorn.trio.run:TCPServer",
    "hypercorn.trio.run:trio.SocketListener",
    "hypercorn.trio.tcp_server:TaskGroup",
    "hypercorn.protocol:H11Protocol",
    "hypercorn.protocol:H2Protocol",
    "hypercorn.config:Config.alpn_protocols",
    "hypercorn.trio.tcp_server:TCPServer.protocol_send",
    "hypercorn.trio.tcp_server:TCPServer.run",
    "hypercorn.trio.tcp_server:TCPServer._close",
    "hypercorn.trio.tcp_server:TCPServer._idle_timeout",
    "hypercorn.trio.tcp_server:TCPServer._initiate_server_close",
    "hypercorn.trio.tcp_server:TCPServer._read_data",
    "hypercorn.trio.task_group:TaskGroup.spawn_app",
    "hypercorn.trio.task_group:_handle",
    "hypercorn.protocol.h11:H11Protocol.handle",
    "hypercorn.protocol.h11:H11Protocol.stream_send",
    "hypercorn.protocol.h11:H11Protocol._check_protocol",
    "hypercorn.protocol.h11:H11Protocol._close_stream",
    "hypercorn.protocol.h11:H11Protocol._handle_events",
    "hypercorn.protocol.h11:H11Protocol._maybe_recycle",
    "hypercorn.protocol.h11:H11Protocol._send_h11_event",
    "hypercorn.utils:LifespanFailureError",
)


class UnsupportedHypercorn(ImportError):
    """Raised when the installed Hypercorn cannot be made safe; nothing has been changed."""


def check_hypercorn() -> None:
    """Return if the installed Hypercorn has the faults that we know and the parts that we replace.

    Raises:
        UnsupportedHypercorn: It is another version, or a part is missing. The text is one sentence.
    """
    version = importlib.metadata.version("hypercorn")
    if not version.startswith(f"{HYPERCORN}."):
        raise UnsupportedHypercorn(
            f"trio_admission_web replaces parts of Hypercorn {HYPERCORN} and cannot run on {version}; "
            f"install hypercorn=={HYPERCORN}.*"
        )
    for point in PATCH_POINTS:
        try:
            pkgutil.resolve_name(point)
        except (ImportError, AttributeError) as error:
            raise UnsupportedHypercorn(
                f"Hypercorn {version} has no {point}, which trio_admission_web must replace; "
                f"install an unmodified hypercorn=={HYPERCORN}.*"
            ) from error
