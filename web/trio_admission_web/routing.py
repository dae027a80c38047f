"""Which backend a request goes to: by the model that it names, then by the wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

from .problems import ProblemError, model_not_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backend import Backend

# What a client writes that means no model in particular.
_NONE: Final = frozenset({None, "", "default"})


@final
class Directory:
    """The backends by what they serve. The first of them is the default one."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        self.models = tuple(dict.fromkeys(name for backend in backends for name in backend.models))
        """All models that are configured, each once."""

    def resolve(self, model: str | None) -> str | None:
        """Return the model that is meant: for none, the default backend's; None if it has none configured."""
        if model not in _NONE:
            return model
        return next(iter(self.backends[0].models), None)

    def choose(self, model: str | None, preferred: str | None = None) -> Backend:
        """Return the backend on which a newcomer would wait the shortest, of those that serve the model.

        The one that is called ``preferred`` wins, if it serves the model.

        A backend without configured models serves every model. If only one model is configured in all, every
        name means it, as it does to llama-server.

        Raises:
            ProblemError: `model_not_found`.
        """
        serving = self._serving(model)
        return next((each for each in serving if each.name == preferred), None) or min(serving, key=_wait)

    def _serving(self, model: str | None) -> Sequence[Backend]:
        name = self.resolve(model)
        if name is None:
            return self.backends[:1] if self.models else self.backends
        found = [each for each in self.backends if name in each.models or name in each.aliases]
        found = found or [each for each in self.backends if not each.models]
        if not found and len(self.models) > 1:
            raise ProblemError(model_not_found(name))
        return found or self.backends


def _wait(backend: Backend) -> tuple[int, float, float]:
    """Return what is smaller for the backend that is to be preferred."""
    condition = backend.condition
    counts = backend.pool.statistics()
    wait = backend.pool.estimated_wait()
    return (
        2 if condition.is_given_up else 0 if condition.serves else 1,
        math.inf if wait is None else wait,
        (counts.held + counts.waiting) / counts.slots,
    )
