"""HTTP/2 as h2 speaks it, where what is wrong with one request is that request's alone.

h2 ends a connection, and with it everybody on it, for a malformed header list, for a body of another length
than was said, and for a stream too many. RFC 9113 asks for the end of that one stream (5.1.2, 8.1.1).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import trio
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamReset,
    UnknownFrameReceived,
)
from h2.exceptions import InvalidBodyLengthError, ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy
from h2.utilities import HeaderValidationFlags, validate_headers
from hyperframe.frame import DataFrame, SettingsFrame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from h2.events import Event
    from hyperframe.frame import Frame

    Header = tuple[bytes, bytes]

MAX_STREAMS: Final = 100  # of one connection, at once
MAX_TABLE: Final = 4096  # bytes of our headers that the client remembers, so that they need not be sent again
WINDOW: Final = 256 * 1024  # bytes of a body that come before the application has taken any

# What a client may do that is work for us and gets nobody an answer: at once, and each second on and on.
NUISANCES: Final = 1000
NUISANCES_PER_SECOND: Final = 33

_METHOD: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_PATH: Final = re.compile(rb"/[\x21-\x7e]*|\*")
_AUTHORITY: Final = re.compile(rb"[\x21-\x7e]+")
_FIELD_OVERHEAD: Final = 32  # RFC 9113, 6.5.2
_REQUEST: Final = HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)


class Connection(H2Connection):
    """The server's side of a connection. It validates no request: see `read_head`.

    Args:
        max_head: Bytes of a header list that clients are told to keep to.
    """

    MAX_CLOSED_STREAMS = 1024  # remembered, so that late frames are told from wrong ones

    def __init__(self, max_head: int) -> None:
        super().__init__(
            H2Configuration(
                client_side=False, validate_inbound_headers=False, validate_outbound_headers=False
            )
        )
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_head,
                SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
            },
        )

    def initiate_connection(self) -> None:
        """Prepare the settings; and a window for which no stream has to wait because of another one."""
        super().initiate_connection()
        self.increment_flow_control_window(MAX_STREAMS * WINDOW - self.inbound_flow_control_window)

    def is_open(self, stream_id: int) -> bool:
        """Whether there is such a stream, and something can still be sent or received on it."""
        stream = self.streams.get(stream_id)
        ended = self.state_machine.state is ConnectionState.CLOSED
        return stream is not None and stream.open and not ended

    def room(self, stream_id: int) -> int:
        """Return how many bytes of an open stream's answer may be sent in one frame now; maybe none."""
        return min(self.local_flow_control_window(stream_id), self.max_outbound_frame_size)

    def reset_if_open(self, stream_id: int, error_code: ErrorCodes) -> None:
        """End a stream, unless it has ended."""
        if self.is_open(stream_id):
            self.reset_stream(stream_id, error_code)

    @property
    def open_inbound_streams(self) -> int:
        """The number of streams that are open, but never too many for another one: h2 would end it all."""
        return min(super().open_inbound_streams, MAX_STREAMS - 1)

    def _receive_frame(self, frame: Frame) -> list[Event]:
        if isinstance(frame, DataFrame) and self._was_reset_by_us(frame.stream_id):
            # Was on its way, and is to be ignored (RFC 9113, 5.1); h2 would answer each with another reset.
            self._inbound_flow_control_window_manager.window_consumed(frame.flow_controlled_length)
            self.acknowledge_received_data(frame.flow_controlled_length, frame.stream_id)
            return []
        try:
            events = super()._receive_frame(frame)
        except ProtocolError as error:
            if not self._is_of_one_stream(frame, error):
                raise
            return self._reset(frame.stream_id, error.error_code)
        if isinstance(frame, SettingsFrame):
            # A client may offer gigabytes, and each new header would be compared with all that it remembers.
            self.encoder.header_table_size = min(self.encoder.header_table_size, MAX_TABLE)
        opened = any(isinstance(each, RequestReceived) for each in events)
        if opened and super().open_inbound_streams > MAX_STREAMS:
            return self._reset(frame.stream_id, ErrorCodes.REFUSED_STREAM)
        return [each for each in events if not (opened and isinstance(each, PriorityUpdated))]

    def _was_reset_by_us(self, stream_id: int) -> bool:
        return self._stream_closed_by(stream_id) is StreamClosedBy.SEND_RST_STREAM

    def _is_of_one_stream(self, frame: Frame, error: ProtocolError) -> bool:
        # A header block that cannot be unpacked (which has a cause) spoils all that follow.
        plain = type(error) in {ProtocolError, InvalidBodyLengthError}
        return plain and error.__cause__ is None and self.is_open(frame.stream_id)

    def _reset(self, stream_id: int, error_code: ErrorCodes) -> list[Event]:
        self.reset_stream(stream_id, error_code)
        return [StreamReset(stream_id=stream_id, error_code=error_code, remote_reset=False)]


class Patience:
    """Says when a client has sent too much of what is nothing but work, such as resets and pings."""

    def __init__(self) -> None:
        self._left = float(NUISANCES)
        self._since = trio.current_time()

    def outlasts(self, events: Iterable[Event]) -> bool:
        """Whether it is not at its end after these events."""
        now = trio.current_time()
        self._left = min(NUISANCES, self._left + (now - self._since) * NUISANCES_PER_SECOND)
        self._since = now
        self._left -= sum(1 for each in events if _is_nuisance(each))
        return self._left >= 0


def _is_nuisance(event: Event) -> bool:
    if isinstance(event, DataReceived):
        return not event.data and event.stream_ended is None
    return isinstance(
        event, PingReceived | PriorityUpdated | RemoteSettingsChanged | StreamReset | UnknownFrameReceived
    )


def read_head(headers: list[Header], max_head: int, *, complete: bool) -> tuple[bytes, bytes] | int:
    """Return a request's method and target, or the status with which HTTP/1 refuses such a head.

    Args:
        headers: Pseudo headers included.
        max_head: Bytes that a header list may have.
        complete: Whether there is no body.
    """
    if sum(len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers) > max_head:
        return 431
    try:
        said = dict(validate_headers(headers, _REQUEST))
    except ProtocolError:
        return 400
    method, target = said[b":method"], said.get(b":path", b"")
    if method == b"CONNECT":  # goes to no path; nobody is there
        target, is_target = said.get(b":authority", b""), _AUTHORITY.fullmatch
    else:
        is_target = _PATH.fullmatch
    if complete and int(said.get(b"content-length", b"0")):  # h2 has seen that it is a number
        return 400
    if b":protocol" in said or not _METHOD.fullmatch(method) or not is_target(target):
        return 400
    return method, target
