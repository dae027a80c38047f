"""What one llama-server says of itself when it is asked.

Questions are cheap to the server, but for one: `/slots` keeps it from noticing that clients have gone whose
answer is not streamed, if it is asked more than once a second, and wakes a server that sleeps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from .condition import State
from .network import reason_of
from .problems import ProblemError
from .upstream import KeyRefusedError, LostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .upstream import Header, Upstream

# A question about the server itself is answered in milliseconds, or something is wrong with it.
_PATIENCE: Final = 2.0
# A server that keeps several models would load one to answer.
_QUERY: Final = b"autoload=false"
# Costs nothing, and a proxy that keeps people away from /props lets it pass.
_TRIAL: Final = ("POST", "/tokenize", b'{"content": ""}')
_LOOP: Final = 508
_KEY: Final = "--upstream-api-key, or api_key in the file, must be its key"


@dataclass(frozen=True, slots=True)
class Said:
    """How one question went.

    Args:
        how: The end of a sentence for the log.
        status: None if there is no answer.
        value: The JSON of a good answer; None otherwise.
        is_late: Whether the server could be reached and did not answer in time.
    """

    how: str
    status: int | None = None
    value: object = None
    is_late: bool = False

    @property
    def facts(self) -> dict[str, object]:
        """The JSON object, empty if the answer is none."""
        return self.value if isinstance(self.value, dict) else {}


@dataclass(frozen=True, slots=True)
class Props:
    """What `/props` said.

    Args:
        how: The end of a sentence for the log.
        is_answer: Whether it said anything at all.
        slots: How many sequences the server decodes at once; None if it does not say so.
        context: Tokens that one sequence may have; None if it does not say so.
    """

    how: str
    is_answer: bool
    slots: int | None
    context: int | None


async def look(upstream: Upstream, *, at_slots: bool) -> tuple[State, str, Props | None]:
    """Ask a server what it does. Blocks for a few seconds at most.

    Args:
        upstream: The server.
        at_slots: Whether to ask for `/slots` too, which a wedged server does not answer.

    Returns:
        Its state, what was heard, for the log, and its properties if they were answered.
    """
    health = await ask(upstream, "GET", "/health")
    state = _by_health(health)
    if state is not State.READY:
        return state, f"/health {health.how}", None
    said = await ask(upstream, "GET", "/props")
    state, heard = await _by_props(upstream, said)
    props = None if state in {State.REFUSING, State.LOADING} else _props(said)
    if state is State.READY and at_slots and (slots := await ask(upstream, "GET", "/slots")).is_late:
        return State.WEDGED, f"/slots {slots.how}", props
    return state, heard or f"/health {health.how}", props


def _by_health(said: Said) -> State:
    if said.status is None:
        return State.WEDGED if said.is_late else State.GONE
    if said.status == 503:
        return State.LOADING
    if said.status == _LOOP:
        return State.REFUSING
    return State.READY if said.facts.get("status") == "ok" else State.UNKNOWN


async def _by_props(upstream: Upstream, said: Said) -> tuple[State, str]:
    if said.status == 503:
        return State.LOADING, f"/props {said.how}"
    if said.status == _LOOP:
        return State.REFUSING, f"/props {said.how}"
    upstream.key_is_refused = said.status == 401 and (await ask(upstream, *_TRIAL)).status == 401
    if upstream.key_is_refused:
        does = "refuses the key that it is sent" if upstream.shows_key else "wants a key"
        return State.REFUSING, f"it {does}; {_KEY}"
    if said.facts.get("is_sleeping") is True:
        return State.SLEEPING, "it says so"
    return State.READY, ""


async def busy_slots(upstream: Upstream) -> frozenset[int]:
    """Ask which slots decode; none when the server does not say. Blocks for 2 s at most."""
    return await _slots(upstream, are_processing=True) or frozenset()


async def idle_slots(upstream: Upstream) -> frozenset[int] | None:
    """Ask which slots do not decode; None when the server does not say. Blocks for 2 s at most."""
    return await _slots(upstream, are_processing=False)


async def _slots(upstream: Upstream, *, are_processing: bool) -> frozenset[int] | None:
    slots = (await ask(upstream, "GET", "/slots")).value
    if not isinstance(slots, list):
        return None
    found = (each for each in slots if isinstance(each, dict) and each.get("is_processing") is are_processing)
    return frozenset(number for each in found if type(number := each.get("id")) is int)


async def ask(
    upstream: Upstream, method: str, path: str, body: bytes = b"", headers: Sequence[Header] = ()
) -> Said:
    """Ask one question. Blocks for 2 s at most."""
    with trio.move_on_after(_PATIENCE):
        try:
            answer = await upstream.fetch(method, path, headers=headers, query=_QUERY, body=body)
        except LostError as error:
            reason = reason_of(error)
            return Said("cannot be asked" + (f" ({reason})" if reason else ""))
        except KeyRefusedError:
            return Said("answers 401", status=401)
        except ProblemError:
            return Said("answers no HTTP", status=0)
        value = read_json(answer.body) if answer.status == 200 else None
        how = "leads back to this gateway" if answer.status == _LOOP else f"answers {answer.status}"
        return Said(how, answer.status, value)
    return Said("takes too long", is_late=True)


def model_entries(said: object) -> list[dict[str, object]]:
    """Return the entries of a list of models that have an id."""
    data = said.get("data") if isinstance(said, dict) else None
    entries = data if isinstance(data, list) else []
    return [each for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]


def _props(said: Said) -> Props:
    settings = said.facts.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    return Props(said.how, said.status is not None, _count(said.facts.get("total_slots")), _count(context))


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 1 else None


def read_json(body: bytes) -> object:
    """Return the JSON in a body, None if there is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
