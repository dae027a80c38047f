"""Where tools come from: built in, installed packages, configuration, MCP servers."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from trio_admission_web.extras import missing_extra

from .builtin import calculate, current_time
from .tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .mcp import McpServer

GROUP: Final = "trio_admission.tools"
_SERVER: Final = "mcp "


class ToolLoadError(Exception):
    """Raised when a tool cannot be had; the text is one sentence for the operator."""


def load_tools(places: Iterable[str] = ()) -> dict[str, Tool]:
    """Return all tools by name: the built-in ones, those of installed packages, and those at ``places``.

    Of one name the latest in this order counts. Packages give tools as entry points of the group
    ``trio_admission.tools``.

    Args:
        places: Each ``module:attribute``, imported now; those of MCP servers are passed over.

    Raises:
        ToolLoadError: Something cannot be imported, or is no `Tool`.
    """
    tools = [current_time, calculate]
    tools.extend(_load(point.value) for point in entry_points(group=GROUP))
    tools += [_load(place) for place in places if not place.startswith(_SERVER)]
    return {each.name: each for each in tools}


def load_servers(places: Iterable[str]) -> list[McpServer]:
    """Return the MCP servers among ``places``: ``mcp``, a space, and an address or a command.

    Raises:
        ToolLoadError: The extra ``mcp`` is missing, or a command cannot be understood.
    """
    return [_server(place) for place in places if place.startswith(_SERVER)]


def complaints_of_tools(places: Iterable[str]) -> list[str]:
    """Load all tools as for a gateway, but run no MCP server; return what is wrong, each as one sentence.

    Args:
        places: As for `load_tools` and `load_servers`.
    """
    found = []
    for place in (*(point.value for point in entry_points(group=GROUP)), *places):
        try:
            _server(place) if place.startswith(_SERVER) else _load(place)
        except ToolLoadError as error:
            found.append(str(error))
    return found


def _load(place: str) -> Tool:
    module, _, attribute = place.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # whatever an import may raise
        raise ToolLoadError(f"the tool {place!r} cannot be loaded: {error}") from error
    if not isinstance(found, Tool):
        raise ToolLoadError(f"{place!r} is not a tool: decorate the function with @tool")
    return found


def _server(place: str) -> McpServer:
    try:
        from .mcp import McpServer  # noqa: PLC0415 - an extra, and half the gateway's memory
    except ImportError as error:
        raise ToolLoadError(f"{place!r} needs a package: {missing_extra(('mcp',), 'mcp')}") from error
    try:
        return McpServer(place.removeprefix(_SERVER))
    except ValueError as error:
        raise ToolLoadError(f"{place!r} cannot be run: {error}") from error
