"""What the gateway counts, for Prometheus.

Counters are told by the one task that owns a request and by the pools' own events, so they equal what
happened. Gauges are not kept at all: they are the pools' statistics at the moment of the scrape. Every label
comes from the configuration or from a closed list, never from a client.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from .condition import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from trio_admission import PoolEvent, PoolStatistics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Seconds. Waits and first bytes reach from a free slot and a short prompt to a long line and a long one.
_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)
_GAUGES: Final = {
    "slots": "Slots of the backend.",
    "held": "Slots that requests hold.",
    "free": "Slots that a request could take now.",
    "waiting": "Newcomers in the line.",
    "parked": "Requests that gave their slot back for a while.",
    "returning": "Requests that wait for a slot again.",
    "kv_held": "Tokens of KV cache that requests hold.",
}


@final
class Metrics:
    """The metrics of one gateway.

    Args:
        statistics: Gives the statistics of every pool, each under its backend's name.
        states: Gives the state of every backend by its name.
    """

    def __init__(
        self,
        statistics: Callable[[], Iterable[PoolStatistics]],
        states: Callable[[], Mapping[str, State]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Pools(statistics))
        self._registry.register(_States(states))
        self._events = self._counter("events", "Changes of the pools, by what happened.", "backend", "event")
        self._outcomes = self._counter("requests", "Requests that have ended, by how.", "route", "outcome")
        self._keepalives = self._counter("keepalives", "Signs of life sent to streams.", "route")
        self._tokens = self._counter("tokens", "Tokens, as the backend counted them.", "backend", "kind")
        self._wait = self._histogram("wait_seconds", "From arrival to the grant of a slot.", "backend")
        self._first_byte = self._histogram(
            "first_byte_seconds", "From arrival to the backend's first event or answer.", "route"
        )
        self._duration = self._histogram("duration_seconds", "From arrival to the end of a request.", "route")

    def exposition(self) -> bytes:
        """Return all of it in Prometheus' text format; its type is `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def pool_event(self, event: PoolEvent) -> None:
        """Count a pool's event; an instrument for `SlotPool.add_instrument`."""
        self._events(event.pool, event.kind.value.replace(" ", "_")).inc()
        if event.kind.value == "granted" and event.seconds is not None:
            self._wait(event.pool).observe(event.seconds)

    def keepalive(self, route: str) -> None:
        """Count a sign of life."""
        self._keepalives(route).inc()

    def first_byte(self, route: str, seconds: float) -> None:
        """Take note of the first thing that a client got from the backend."""
        self._first_byte(route).observe(seconds)

    def tokens(self, backend: str, *, prompt: int, generated: int) -> None:
        """Count what one request made the backend work on."""
        self._tokens(backend, "prompt").inc(prompt)
        self._tokens(backend, "generated").inc(generated)

    def ended(self, route: str, outcome: str, seconds: float) -> None:
        """Count a request that has ended, whatever way."""
        self._outcomes(route, outcome.replace(" ", "_")).inc()
        self._duration(route).observe(seconds)

    # What has certain labels is kept: to look it up takes longer than to count, and there are not many.

    def _counter(self, name: str, help_text: str, *labels: str) -> Callable[..., Counter]:
        return cache(Counter(f"trio_admission_{name}", help_text, labels, registry=self._registry).labels)

    def _histogram(self, name: str, help_text: str, *labels: str) -> Callable[..., Histogram]:
        return cache(
            Histogram(
                f"trio_admission_{name}", help_text, labels, registry=self._registry, buckets=_BUCKETS
            ).labels
        )


class _States:
    """Reads the backends' states when it is scraped."""

    def __init__(self, states: Callable[[], Mapping[str, State]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield one family: 1 for the state that each backend is in, 0 for the others."""
        help_text = "1 for the state that the backend was in when it was last asked."
        family = GaugeMetricFamily("trio_admission_backend_state", help_text, labels=["backend", "state"])
        for name, found in self._states().items():
            for state in State:
                family.add_metric([name, state.value], state is found)
        yield family


class _Pools:
    """Reads the pools when it is scraped."""

    def __init__(self, statistics: Callable[[], Iterable[PoolStatistics]]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Yield one family of gauges for each number."""
        pools = list(self._statistics())
        for name, help_text in _GAUGES.items():
            family = GaugeMetricFamily(f"trio_admission_{name}", help_text, labels=["backend"])
            for pool in pools:
                family.add_metric([pool.name], getattr(pool, name))
            yield family
