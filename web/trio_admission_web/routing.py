"""Which backend a request goes to: by the model that it names, then by the wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

from .condition import State
from .problems import ProblemError, model_not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def choose(
        self,
        model: str | None,
        preferred: str | None = None,
        *,
        knows: Callable[[Backend], bool] = lambda _backend: False,
        crowd: Callable[[Backend], int] = lambda _backend: 0,
    ) -> Backend:
        """Return the backend on which a newcomer would wait the shortest, of those that serve the model.

        A backend without configured models serves every model. If only one model is configured in all, every
        name means it, as it does to llama-server.

        Args:
            model: As the client named it.
            preferred: The name of the backend that wins, if it serves the model.
            knows: Whether a backend knows the conversation; it wins where the wait is the same.
            crowd: How many requests are on their way to a backend, some of which it may not know of yet.

        Raises:
            ProblemError: `model_not_found`.
        """
        serving = self._serving(model)
        if len(serving) == 1:
            return serving[0]
        found = next((each for each in serving if each.name == preferred), None)
        return found or min(serving, key=lambda each: _rank(each, crowd(each), knows(each)))

    def _serving(self, model: str | None) -> Sequence[Backend]:
        name = self.resolve(model)
        if name is None:
            return self.backends[:1] if self.models else self.backends
        found = [each for each in self.backends if name in each.models or name in each.aliases]
        found = found or [each for each in self.backends if not each.models]
        if not found and len(self.models) > 1:
            raise ProblemError(model_not_found(name))
        return found or self.backends


def _rank(backend: Backend, crowd: int, knows: bool) -> tuple[object, ...]:  # noqa: FBT001 - it is a rank
    """Return what is smaller for the backend that is to be preferred."""
    condition = backend.condition
    wait = backend.pool.estimated_wait()
    slots = backend.pool.statistics().slots
    return (
        condition.is_given_up,
        not condition.serves or condition.state is State.REFUSING,
        math.inf if wait is None else wait,
        crowd >= slots,
        not knows,
        crowd / slots,
    )
