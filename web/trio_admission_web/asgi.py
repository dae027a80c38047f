"""The gateway for ``hypercorn -k trio trio_admission_web.asgi:app``.

It is set up by the environment and by the file that ``TRIO_ADMISSION_CONFIG`` names. Hypercorn decides where
to listen and when to stop.
"""

from __future__ import annotations

from .app import create_app
from .configuration import ConfigurationError, load
from .engine import EngineError
from .logs import set_up
from .tools import ToolLoadError

set_up()
try:
    app = create_app(load())
except (ConfigurationError, EngineError, ToolLoadError) as error:
    raise SystemExit(f"trio-admission: {error}") from error
