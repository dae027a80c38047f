"""What to tell somebody who lacks a part that is installed only on demand."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    from collections.abc import Collection

_NAME: Final = "trio-admission"


def missing_extra(missing: Collection[str], *extras: str) -> str:
    """Say what is missing, and how to install it into this environment, from where the rest came from."""
    are, them = ("are", "them") if len(missing) > 1 else ("is", "it")
    python = sys.executable
    installer = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{', '.join(missing)} {are} not installed: `{installer} {_wanted(','.join(extras))}` gets {them}"


def _wanted(extras: str) -> str:
    # PEP 610: there is such a record if this was installed from anything but a registry.
    record = distribution(_NAME).read_text("direct_url.json")
    if record is None:
        return f"'{_NAME}[{extras}]'"
    origin = json.loads(record)
    if (directory := origin.get("dir_info")) is not None:
        edited = "-e " if directory.get("editable") else ""
        return f"{edited}'{url2pathname(urlsplit(origin['url']).path)}[{extras}]'"
    kind = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    return f"'{_NAME}[{extras}] @ {kind}{origin['url']}'"
