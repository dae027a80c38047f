"""Runs the calls that a model makes of the gateway's tools, and asks a person first where that is due."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, final

import trio

from .tools import ToolError, current_request, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .approvals import Approvals
    from .tools import Approval, Tool
    from .wire.exchange import Call

log: Final = logging.getLogger(__name__)

# Characters of a result that the client is shown, and of changed arguments that the model is.
_SHOWN: Final = 2000


@final
class Caller:
    """Runs calls for one request.

    Args:
        tools: Those that the request may use, by name.
        wish: Whether it wants a person to be asked.
        approvals: Where the questions are open.
        request: Its id.
        flow: Whose it is.
    """

    def __init__(
        self, tools: Mapping[str, Tool], wish: Approval, approvals: Approvals, *, request: str, flow: str
    ) -> None:
        self._tools = tools
        self._wish = wish
        self._approvals = approvals
        self._request = request
        self._flow = flow

    async def run(self, calls: Sequence[Call], tell: Callable[[dict[str, Any]], None]) -> list[str]:
        """Run all calls at once and return a result for each, in their order: what the model is told.

        A call that does not fit the tool, is denied, takes too long or fails has a sentence as its result.
        Blocks until all are decided and done.

        Args:
            calls: What the model asked for.
            tell: Is given an object for each thing that happens.
        """
        results = [""] * len(calls)

        async def run_one(index: int) -> None:
            results[index] = await self._run(calls[index], tell)

        async with trio.open_nursery() as nursery:
            for index in range(len(calls)):
                nursery.start_soon(run_one, index)
        return results

    async def _run(self, call: Call, tell: Callable[[dict[str, Any]], None]) -> str:
        current_request.set(self._request)
        tool, about = self._tools[call.name], {"call": call.id, "tool": call.name}
        try:
            arguments: Mapping[str, Any] = tool.check(call.arguments)
            note = ""
            if tool.asks(self._wish):
                edited = await self._ask(tool, arguments, about, tell)
                if edited is not None:
                    arguments = edited
                    shown = json.dumps(edited, ensure_ascii=False)[:_SHOWN]
                    note = f"(The user changed the arguments to {shown}.)\n"
            tell({"type": "tool_started", **about, "arguments": arguments})
            result = fit(note + await tool.call(arguments))
        except ToolError as error:
            if error.__cause__ is not None:
                log.warning("request %s: tool %s failed (%r)", self._request, call.name, error.__cause__)
            result = fit(str(error))
            tell({"type": "tool_result", **about, "ok": False, "result": result[:_SHOWN]})
            return f"Error: {result}"
        tell({"type": "tool_result", **about, "ok": True, "result": result[:_SHOWN]})
        return result

    async def _ask(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        about: dict[str, Any],
        tell: Callable[[dict[str, Any]], None],
    ) -> Mapping[str, Any] | None:
        """Wait for a person; return the arguments that they gave, if they gave others."""
        with self._approvals.asked(tool, arguments, request=self._request, flow=self._flow) as question:
            tell({"type": "approval_required", **about, **question.facts()})
            decision = await question.decision()
        tell({"type": "approval_decided", **about, "id": question.id, "decision": decision.word})
        if decision.by is None:
            raise ToolError("Nobody answered whether this may run, so it was not run.")
        if not decision.allowed:
            because = f" The reason: {decision.reason}" if decision.reason else ""
            raise ToolError(f"The user did not allow this call.{because}")
        return decision.arguments
