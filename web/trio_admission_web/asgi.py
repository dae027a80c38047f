"""The gateway for ``hypercorn -k trio trio_admission_web.asgi:app``, set up by the environment.

`Settings.from_env` says which variables there are. Hypercorn decides where to listen and when to stop.
"""

from __future__ import annotations

from .app import create_app
from .settings import Settings

app = create_app(Settings.from_env())
