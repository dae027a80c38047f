"""`Tool`: a Python function as a model may call it."""

from __future__ import annotations

import inspect
import json
import re
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import trio

from .schema import complaints, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Approval: TypeAlias = Literal["always", "auto", "never"]

# Characters of a result; a longer one is cut, since all of it goes into the model's context.
_LONGEST_RESULT: Final = 64 * 2**10
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

current_request: Final[ContextVar[str]] = ContextVar("trio_admission_web.tools.current_request")
"""Id of the request for which the tool runs: what a tool that asks the gateway something sends along as the
header ``admission-parent``, so that it cannot wait for the slot of the very request that waits for it."""


class ToolError(Exception):
    """A call that gave no result; the text is one sentence for the model. Tools may raise it themselves."""


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model may call.

    Args:
        function: Called with the arguments by name. If it is no coroutine function, it runs in a thread, and
            a call that takes too long is left behind there.
        name: What the model calls it: letters, digits, ``_`` and ``-``, at most 64.
        description: What the model is told of it.
        schema: JSON Schema of the object that the arguments make.
        approval: ``always`` = a person is asked whatever the request says; ``auto`` = unless the request
            says ``never``; ``never`` = only if the request says ``always``.
        timeout: Seconds that one call may take.
        concurrency: How many calls may run at once; more wait, within their timeout.
    """

    function: Callable[..., Any]
    _: KW_ONLY
    name: str
    description: str
    schema: Mapping[str, Any]
    approval: Approval = "auto"
    timeout: float = 30.0
    concurrency: int = 4
    _limiter: trio.CapacityLimiter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name must be 1 to 64 letters, digits, _ or -, not {self.name!r}")
        if self.approval not in {"always", "auto", "never"}:
            raise ValueError(f"approval must be always, auto or never, not {self.approval!r}")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout must be above 0 seconds, not {self.timeout!r}")
        object.__setattr__(self, "_limiter", trio.CapacityLimiter(self.concurrency))

    def asks(self, wish: Approval) -> bool:
        """Say whether a person is asked before it runs, if the request wishes ``wish``."""
        if "always" in {self.approval, wish}:
            return True
        return "never" not in {self.approval, wish}

    def check(self, arguments: object) -> dict[str, Any]:
        """Return the arguments if they fit the schema.

        Raises:
            ToolError: They do not; the text says all that is wrong.
        """
        wrong = list(complaints(arguments, self.schema, "arguments"))
        if wrong:
            raise ToolError("; ".join(wrong) + ".")
        assert isinstance(arguments, dict)
        return arguments

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Run it and return its result: text as it is, anything else as JSON, cut at 64 Ki characters.

        Blocks until the result is there, for `timeout` seconds at most.

        Args:
            arguments: Such that `check` takes them.

        Raises:
            ToolError: It took too long, raised, or returned what JSON does not have. What it raised is the
                error's cause and not in its text.
        """
        with trio.move_on_after(self.timeout) as scope:
            try:
                result = await self._run(arguments)
            except ToolError:
                raise
            except BaseException as error:  # a tool that calls sys.exit() ends its call and not the gateway
                if _ends_us(error):
                    raise
                raise ToolError(f"{self.name} failed.") from error
        if scope.cancelled_caught:
            raise ToolError(f"{self.name} gave no result within {self.timeout:g} s.")
        if not isinstance(result, str):
            try:
                result = json.dumps(result, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ToolError(f"{self.name} failed.") from error
        return fit(result)

    async def _run(self, arguments: Mapping[str, Any]) -> object:
        if inspect.iscoroutinefunction(self.function):
            async with self._limiter:
                return await self.function(**arguments)
        return await trio.to_thread.run_sync(
            partial(self.function, **arguments), abandon_on_cancel=True, limiter=self._limiter
        )


def fit(text: str) -> str:
    """Cut a text for the model to what its context may have to bear, and replace what UTF-8 does not have."""
    return text[:_LONGEST_RESULT].encode(errors="replace").decode()


def _ends_us(error: BaseException) -> bool:
    kinds = (trio.Cancelled, KeyboardInterrupt)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(kinds) is not None
    return isinstance(error, kinds)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, approval: Approval = "auto", timeout: float = 30.0, concurrency: int = 4
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    approval: Approval = "auto",
    timeout: float = 30.0,
    concurrency: int = 4,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `Tool` of a function: ``@tool``, or with options ``@tool(approval="never")``.

    The name is the function's unless ``name`` gives another; description and schema come from its docstring
    and annotations (`describe`). The options are `Tool`'s.

    Raises:
        TypeError: The function's parameters cannot be described.
        ValueError: An option is out of its range.
    """

    def make(function: Callable[..., Any]) -> Tool:
        description, schema = describe(function)
        return Tool(
            function,
            name=name or function.__name__,
            description=description,
            schema=schema,
            approval=approval,
            timeout=timeout,
            concurrency=concurrency,
        )

    return make if function is None else make(function)
