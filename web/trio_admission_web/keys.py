"""Who may: API keys, kept as hashes, each with a flow and its limits."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_BEARER: Final = b"bearer "


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key as the configuration has it.

    Args:
        name: What logs and the admin view call it.
        hash: ``sha256:`` and the hexadecimal digest of the key. Keys are long and random (`new_key`), so
            that a plain digest gives nothing away and costs little on each request.
        flow: On whose behalf it asks; keys of one flow share its part of the slots. Default: the name.
        weight: The flow's share in relation to others, above 0.
        priority: Higher is served first.
        max_requests: How many requests it may have here at once, running or waiting; None = any number.
        max_waiting: How many of them may wait; None = as many as the line takes.
        models: Models that it may name; None = all.
        admin: Whether it may see and cancel what others do.

    Raises:
        ValueError: A value is out of its range; the message begins with its name.
    """

    name: str
    hash: str = field(repr=False)
    flow: str = ""
    weight: float = 1.0
    priority: int = 0
    max_requests: int | None = None
    max_waiting: int | None = None
    models: frozenset[str] | None = None
    admin: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not _HASH.fullmatch(self.hash):
            raise ValueError(
                "hash must be 'sha256:' and 64 hexadecimal digits; `trio-admission new-key` makes one"
            )
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be above 0, not {self.weight!r}")
        if self.max_requests is not None and self.max_requests < 1:
            raise ValueError(f"max_requests must be at least 1, not {self.max_requests!r}")
        if self.max_waiting is not None and self.max_waiting < 0:
            raise ValueError(f"max_waiting must be at least 0, not {self.max_waiting!r}")
        if not self.flow:
            object.__setattr__(self, "flow", self.name)

    def may_use(self, model: str | None) -> bool:
        """Say whether it may name this model; None = none is configured, and all may use what there is."""
        return self.models is None or model is None or model in self.models


@final
class KeyRing:
    """The keys that are known.

    An empty ring knows nobody and locks nothing: `locked` is false.
    """

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = tuple(keys)
        self._digests = tuple(bytes.fromhex(key.hash.removeprefix("sha256:")) for key in self._keys)

    @property
    def locked(self) -> bool:
        """Whether a key is needed."""
        return bool(self._keys)

    def find(self, headers: Sequence[Header]) -> ApiKey | None:
        """Return the key that a request shows, or None.

        It may be shown as ``Authorization: Bearer`` or as ``x-api-key``; names in lower case. A request that
        shows two different keys shows none. Every known key is compared, each in constant time.
        """
        shown = {secret for name, value in headers if (secret := _shown(name, value)) is not None}
        if len(shown) != 1:
            return None
        digest = hashlib.sha256(shown.pop()).digest()
        found = None
        for key, known in zip(self._keys, self._digests, strict=True):
            if hmac.compare_digest(digest, known):
                found = key
        return found


def new_key() -> tuple[str, str]:
    """Return a new key, and its hash for the configuration."""
    key = "ta-" + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Return a key's hash as the configuration has it."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def _shown(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip() or None
    if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
        return value[len(_BEARER) :].strip() or None
    return None
