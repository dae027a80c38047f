"""HTTP/2 for `fuzz_serving`: frames in an order that is often right, damaged at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

if TYPE_CHECKING:
    import random

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EDGES: Final = (0, 1, 2, 100, 2**14, 2**16 - 1, 2**24 - 1, 2**31 - 1, 2**31)
ODD_FIELDS: Final = (
    (":path", "x"),
    (":path", "/\x00"),
    (":status", "100"),
    (":protocol", "websocket"),
    ("Host", "y"),
    ("host", "y"),
    ("", ""),
    ("connection", "close"),
    ("content-length", "3"),
    ("content-length", "-3"),
    ("content-length", "99999999999999999999"),
    ("expect", "100-continue"),
    ("te", "gzip"),
    ("x", "y" * 20_000),
    ("cookie", "a=b"),
)


def head(rng: random.Random, path: str) -> list[tuple[str, str]]:
    """Return a header list, mostly a good one."""
    method = rng.choice(("GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "CONNECT"))
    fields = [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path)]
    while rng.random() < 0.2:
        if rng.random() < 0.3:
            del fields[rng.randrange(len(fields))]
            if not fields:
                return fields
        else:
            fields.insert(rng.randrange(len(fields) + 1), rng.choice(ODD_FIELDS))
    return fields


def request(rng: random.Random, encoder: Encoder, number: int, path: str) -> list[Frame]:
    """Return the frames of a request; sometimes the body is not what was said, or does not end."""
    block = encoder.encode(head(rng, path), huffman=rng.random() < 0.5)
    bodies = [rng.randbytes(rng.choice((0, 1, 5, 300, 16_000))) for _ in range(rng.choice((0, 0, 1, 3, 10)))]
    first = HeadersFrame(number, data=block)
    frames: list[Frame] = [first]
    if rng.random() < 0.2:
        cut = rng.randrange(len(block) + 1)
        first.data = block[:cut]
        frames.append(ContinuationFrame(number, data=block[cut:]))
    frames[-1].flags.add("END_HEADERS")
    frames += [DataFrame(number, data=body) for body in bodies]
    if rng.random() < 0.8:
        (first if not bodies else frames[-1]).flags.add("END_STREAM")
    return frames


def other(rng: random.Random, number: int) -> Frame:
    """Return a frame that belongs to no request, or to one that may be over."""
    stream, edge = rng.choice((number, number, max(1, number - 2), number + 2, 2)), rng.choice(EDGES)
    connection_or_stream = rng.choice((0, stream))
    frames: tuple[Frame, ...] = (
        SettingsFrame(settings={rng.randrange(1, 12): edge}),
        PingFrame(opaque_data=rng.randbytes(8)),
        WindowUpdateFrame(connection_or_stream, window_increment=min(max(edge, 1), 2**31 - 1)),
        RstStreamFrame(stream, error_code=rng.randrange(16)),
        PriorityFrame(stream, depends_on=rng.choice((0, 1, stream)), stream_weight=3),
        DataFrame(stream, data=rng.randbytes(rng.randrange(20))),
        ContinuationFrame(stream, data=b"\x82"),
        PushPromiseFrame(stream, promised_stream_id=2, data=b"\x82", flags=["END_HEADERS"]),
        GoAwayFrame(error_code=rng.randrange(14)),
    )
    return rng.choice(frames)


def damaged_http2(rng: random.Random, paths: tuple[str, ...]) -> bytes:
    """Return what one client sends: requests and other frames, with up to four mutations."""
    encoder, sent = Encoder(), bytearray(PREFACE + SettingsFrame().serialize())
    number = 1
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        frames = request(rng, encoder, number, rng.choice(paths))
        while rng.random() < 0.4:
            frames.insert(rng.randrange(len(frames) + 1), other(rng, number))
        for frame in frames:
            sent += frame.serialize()
        number += rng.choice((2, 2, 2, 2, 0, 10))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        # The preface stays: what is wrong there is HTTP/1's to see.
        at = rng.randrange(len(PREFACE), len(sent) + 1)
        match rng.randrange(4):
            case 0:
                sent[at : at + 1] = rng.randbytes(1)
            case 1:
                del sent[at : at + rng.randrange(1, 30)]
            case 2:
                sent[at:at] = rng.randbytes(rng.randrange(1, 30))
            case _:
                del sent[at:]
    return bytes(sent)
