"""What requests share of tools: the tools, the questions that are open, and the addresses to answer them."""

from __future__ import annotations

import logging
from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio
from quart import Response, g, request

from .access import is_admin
from .approvals import Approvals
from .calls import Caller
from .problems import ProblemError, invalid_request
from .rendering import json_response
from .tools import load_servers, load_tools
from .turns import Turns
from .wire.body import read_object
from .wire.chat import Chat
from .wire.chat_rounds import ChatRounds
from .wire.message_rounds import MessageRounds
from .wire.messages import Messages
from .wire.offer import Function, read_offer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quart_trio import QuartTrio

    from .tools import Tool
    from .wire.exchange import Conversation, Exchange

log: Final = logging.getLogger(__name__)

_ROUNDS: Final[dict[Callable[[bytes], Exchange], Callable[[bytes, Sequence[Function]], Conversation]]] = {
    Chat: ChatRounds,
    Messages: MessageRounds,
}


@final
class Toolbox:
    """The gateway's tools.

    Args:
        places: Where tools are besides the built-in ones; see `load_tools` and `load_servers`, whose
            errors this raises.
        approval_ttl: Seconds for which a person may be waited for.
    """

    def __init__(self, places: Sequence[str], approval_ttl: float) -> None:
        self._servers = load_servers(places)
        self.tools = ChainMap(load_tools(places), *(each.tools for each in self._servers))
        self.approvals = Approvals(ttl=approval_ttl)
        self._running = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep the MCP servers connected until `stop`. Counts as started when each was tried once."""
        with self._running:
            async with trio.open_nursery() as nursery:
                for server in self._servers:
                    nursery.start_soon(server.run)
                for server in self._servers:
                    await server.tried.wait()
                    hidden = [name for name, each in server.tools.items() if self.tools[name] is not each]
                    if hidden:
                        names = ", ".join(hidden)
                        log.warning("MCP server %s: hidden by other tools: %s", server.target, names)
                task_status.started()

    def stop(self) -> None:
        """Let the MCP servers go."""
        self._running.cancel()

    def read(
        self, read: Callable[[bytes], Exchange], raw: bytes, *, request_id: str, flow: str
    ) -> tuple[Exchange, Turns | None]:
        """Read a request; with `Turns` if it asks for tools of the gateway.

        Args:
            read: The dialect.
            raw: The body.
            request_id: The request's name.
            flow: On whose behalf it is.

        Raises:
            ProblemError: `invalid_request`, also for tools that there are not.
        """
        offer = read_offer(raw)
        if offer is None or not offer.tools:
            return read(raw), None
        if read not in _ROUNDS:
            message = "Tools of the gateway go with chat completions and messages only."
            raise ProblemError(invalid_request(message, "admission"))
        for name in offer.tools:
            if name not in self.tools:
                message = f"The gateway has no tool {name[:100]!r}."
                raise ProblemError(invalid_request(message, "admission.tools"))
        tools = {name: self.tools[name] for name in offer.tools}
        conversation = _ROUNDS[read](raw, [_function(each) for each in tools.values()])
        caller = Caller(tools, offer.approval, self.approvals, request=request_id, flow=flow)
        return conversation, Turns(conversation, caller)


def add_toolbox(app: QuartTrio, toolbox: Toolbox) -> None:
    """Let the tools live as long as the application, whose users see what is asked, and answer."""

    @app.before_serving
    async def start() -> None:
        await app.nursery.start(toolbox.run)

    @app.after_serving
    async def stop() -> None:
        toolbox.stop()

    approvals = toolbox.approvals
    app.add_url_rule("/admission/approvals", "approvals", partial(_list, approvals))
    app.add_url_rule("/admission/approvals/<name>", "decide", partial(_decide, approvals), methods=["POST"])


async def _list(approvals: Approvals) -> Response:
    """Show the questions that are open: an admin all, everybody else those of their flow."""
    found = approvals.open(None if is_admin() else _flow())
    return json_response({
        "approvals": [
            {**each.facts(), "request": each.request, **({"flow": each.flow} if each.flow else {})}
            for each in found
        ]
    })


async def _decide(approvals: Approvals, name: str) -> Response:
    body = read_object(await request.get_data(cache=False, as_text=False, parse_form_data=False))
    decision = approvals.decide(name, body, flow=_flow())
    return json_response({"id": name, "decision": decision.word})


def _flow() -> str:
    return g.key.flow if g.key is not None else ""


def _function(tool: Tool) -> Function:
    return Function(tool.name, tool.description, tool.schema)
