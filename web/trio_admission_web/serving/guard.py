"""Refuse a Hypercorn, an h11 or an h2 that this package was not written for."""

from __future__ import annotations

import importlib.metadata
import pkgutil

HYPERCORN = "0.18"

# What is replaced, derived from or called by the modules beside this one, and is private to its package.
H11_POINTS = ("h11._receivebuffer:ReceiveBuffer.maybe_extract_lines",)
H2_POINTS = (
    "h2.connection:ConnectionState",
    "h2.connection:H2Connection._receive_frame",
    "h2.connection:H2Connection._stream_closed_by",
    "h2.stream:StreamClosedBy",
    "h2.utilities:HeaderValidationFlags",
    "h2.utilities:validate_headers",
    "h2.windows:WindowManager.window_consumed",
)
HYPERCORN_POINTS = (
    "hypercorn.trio.run:TCPServer",
    "hypercorn.trio.run:trio.SocketListener",
    "hypercorn.trio.tcp_server:TaskGroup",
    "hypercorn.protocol:H11Protocol",
    "hypercorn.protocol:H2Protocol",
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
    "hypercorn.protocol.h11:H11Protocol._close_stream",
    "hypercorn.protocol.h11:H11Protocol._create_stream",
    "hypercorn.protocol.h11:H11Protocol._handle_events",
    "hypercorn.protocol.h11:H11Protocol._maybe_recycle",
    "hypercorn.protocol.h11:H11Protocol._send_h11_event",
    "hypercorn.protocol.h11:H2ProtocolAssumedError",
    "hypercorn.protocol.h11:STREAM_ID",
    "hypercorn.protocol.http_stream:HTTPStream.app_send",
    "hypercorn.protocol.http_stream:HTTPStream.handle",
    "hypercorn.utils:LifespanFailureError",
    "hypercorn.utils:filter_pseudo_headers",
)


class UnsupportedHypercorn(ImportError):
    """Raised when the installed Hypercorn cannot be made safe; nothing has been changed."""


def check_hypercorn() -> None:
    """Return if Hypercorn has the faults that we know, and it, h11 and h2 have the parts that we replace.

    Raises:
        UnsupportedHypercorn: It is another version, or a part is missing. The text is one sentence.
    """
    version = importlib.metadata.version("hypercorn")
    if not version.startswith(f"{HYPERCORN}."):
        raise UnsupportedHypercorn(
            f"trio_admission_web replaces parts of Hypercorn {HYPERCORN} and cannot run on {version}; "
            f"install hypercorn=={HYPERCORN}.*"
        )
    _check_parts(HYPERCORN_POINTS, "hypercorn", f"hypercorn=={HYPERCORN}.*")
    _check_parts(H11_POINTS, "h11", "h11==0.16.*")
    _check_parts(H2_POINTS, "h2", "h2==4.4.*")


def _check_parts(points: tuple[str, ...], package: str, wanted: str) -> None:
    for point in points:
        try:
            pkgutil.resolve_name(point)
        except (ImportError, AttributeError) as error:
            raise UnsupportedHypercorn(
                f"{package} {importlib.metadata.version(package)} has no {point}, which trio_admission_web "
                f"must replace; install an unmodified {wanted}"
            ) from error
