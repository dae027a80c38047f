"""What became of a request, as its client can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.support.gateway import CHAT, chat
from tests.support.raw_client import RawClient, data_of

if TYPE_CHECKING:
    from tests.support.raw_client import Answer


def verdict(answer: Answer, *, stream: bool) -> str:
    """What a client is told; "cut" if it cannot know."""
    if not answer.complete:
        return "cut"
    if answer.status != 200:
        return str(answer.json["error"]["code"])
    if not stream:
        return "answered"
    *said, end = data_of(answer.body)
    errors = [each["error"]["code"] for each in said if "error" in each]
    return str(errors[0]) if errors else "answered" if end == "[DONE]" else "cut"


async def visit(url: str, *, stream: bool) -> str:
    """Ask once over a new connection, and say what became of it."""
    try:
        async with RawClient.connected(url) as client:
            return verdict(await client.ask("POST", CHAT, chat(stream=stream)), stream=stream)
    except EOFError:
        return "cut"
    except trio.BrokenResourceError:
        return "reset"
    except OSError:
        return "refused"
