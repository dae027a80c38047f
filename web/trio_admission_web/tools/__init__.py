"""Server-side tools: Python functions that the gateway runs when a model calls them."""

from .loading import (
    ToolLoadError as ToolLoadError,
    complaints_of_tools as complaints_of_tools,
    load_servers as load_servers,
    load_tools as load_tools,
)
from .tool import (
    Approval as Approval,
    Tool as Tool,
    ToolError as ToolError,
    current_request as current_request,
    fit as fit,
    tool as tool,
)
