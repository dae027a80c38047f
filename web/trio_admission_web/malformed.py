"""What is told to a client, to the log and to the metrics of what was no request."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from . import problems
from .logs import tell

if TYPE_CHECKING:
    from .metrics import Metrics


def refuse(metrics: Metrics, status: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Count and log a refusal, and return the headers and the body of its answer."""
    name, problem = uuid.uuid4().hex, problems.malformed(status)
    metrics.ended("other", problem.code, 0.0)
    tell(name, flow="", route="other", duration=0.0, outcome=problem.code)
    body = json.dumps({**problem.openai(), "request_id": name}).encode()
    return [(b"content-type", b"application/json"), (b"x-request-id", name.encode())], body
