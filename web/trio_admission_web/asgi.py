"""The gateway for ``hypercorn -k trio trio_admission_web.asgi:app``.

It is set up by the environment and by the file that ``TRIO_ADMISSION_CONFIG`` names. Hypercorn decides where
to listen and when to stop.
"""

from __future__ import annotations

import sys

# Before anything of ours is imported, since Quart imports that too.
if "hypercorn.asyncio.run" in sys.modules:
    raise SystemExit("trio-admission: the gateway runs on Trio: hypercorn needs `-k trio`")

from .app import create_app
from .configuration import ConfigurationError, load
from .engine import EngineError
from .logs import set_up
from .tools import ToolLoadError

set_up(but_not="hypercorn.error")  # whose lines Hypercorn writes where it was told to
try:
    app = create_app(load())
except (ConfigurationError, EngineError, ToolLoadError) as error:
    raise SystemExit(f"trio-admission: {error}") from error
