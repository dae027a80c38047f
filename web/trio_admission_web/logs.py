"""What the gateway says on stderr: JSON for programs, lines for people.

One line tells of each request. Nothing that a client or a backend sent is in it but the request's id and the
model's name, both bounded.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

log: Final = logging.getLogger(__name__)

_LONGEST_MODEL: Final = 100
_DIGITS: Final = 3  # of a second


def tell(
    request_id: str,
    *,
    flow: str,
    route: str,
    outcome: str,
    duration: float,
    model: str | None = None,
    **facts: Any,
) -> None:
    """Log how one request went. Times are seconds from its arrival; what is None is left out."""
    if not log.isEnabledFor(logging.INFO):
        return
    said: dict[str, Any] = {
        "id": request_id,
        "flow": flow,
        "route": route,
        "model": model and model[:_LONGEST_MODEL],
    }
    said |= {**facts, "duration": duration, "outcome": outcome}
    said = {
        name: round(value, _DIGITS) if isinstance(value, float) else value
        for name, value in said.items()
        if value is not None
    }
    log.info(
        "request %s: %s after %.3f s", request_id, outcome.replace("_", " "), duration, extra={"facts": said}
    )


def set_up(*, but_not: str = "") -> None:
    """Log to stderr from now on: lines if that is a terminal, else JSON.

    Args:
        but_not: A logger that somebody else writes down.
    """
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: record.name != but_not)
    handler.setFormatter(ForPeople() if sys.stderr.isatty() else ForPrograms())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class ForPrograms(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the facts of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)


class ForPeople(logging.Formatter):
    """Time, level, message, and the facts of a request that the message does not have."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """Make the line."""
        facts = getattr(record, "facts", {})
        more = [
            f"{n}={json.dumps(v)}"
            for n, v in facts.items()
            if n not in {"id", "outcome", "duration"} and v != ""
        ]
        return " ".join([super().formatMessage(record), *more])
