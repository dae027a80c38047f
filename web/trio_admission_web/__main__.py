"""``python -m trio_admission_web`` is the command ``trio-admission``."""

from __future__ import annotations

from .cli import main

raise SystemExit(main())
