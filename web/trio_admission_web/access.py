"""Who a request is from, found before anything else is looked at."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from quart import g, request

from . import problems
from .options import is_loopback
from .problems import ProblemError

if TYPE_CHECKING:
    from .gateway import Gateway
    from .keys import ApiKey

# Asked by load balancers, which have no key, and telling nothing that one is needed for.
_OPEN: Final = frozenset({"/health", "/ready"})
ADMIN: Final = frozenset({"/metrics", "/props", "/slots"})
"""What only an admin's key opens, where there are keys."""

_is_local_address = lru_cache(maxsize=64)(is_loopback)


async def identify(gateway: Gateway) -> None:
    """Let the request go on as somebody who may, its body unread; ``g.key`` is who.

    A preflight (OPTIONS) has no key and asks for nothing.

    Raises:
        ProblemError: `invalid_api_key`, `permission_denied`.
    """
    g.key = None
    if request.method == "OPTIONS" or request.path in _OPEN:
        return
    if not gateway.keys.locked:
        if not (gateway.settings.insecure or _is_local()):
            raise ProblemError(problems.local_only())
        return
    g.key = gateway.keys.find(list(request.scope["headers"]))
    if g.key is None:
        raise ProblemError(problems.invalid_api_key())
    if request.path in ADMIN and not g.key.admin:
        raise ProblemError(problems.permission_denied())


def is_admin() -> bool:
    """Whether the one who asks may see and do everything."""
    key: ApiKey | None = g.key
    return key is None or key.admin


def _is_local() -> bool:
    # Hypercorn's own command may listen where this program cannot see; the request shows where it came in.
    server = request.scope.get("server")
    return server is None or server[1] is None or _is_local_address(server[0])
