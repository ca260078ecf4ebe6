"""The gateway's metrics in Prometheus's text format 0.0.4."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from metropolis.gateway.cache_choice import CACHED, REUSED, REUSED_BYTES
from metropolis.gateway.routes import ORDERED

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
NUMBER = re.compile(r"\d{1,15}", re.ASCII)
OTHER = "other"
"""Label of all functions beyond the maximum number of distinct names."""


class Metrics:
    """Counters and histograms of one gateway."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By engine (empty if the request was at none), function, status.

        The function is also empty if the request was refused before it was queued.
        """
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.latency = self._histogram("latency", "From a request's arrival to its answer's end.")
        self.queueing = self._histogram(
            "queueing", "Time that an answered request spent at no engine."
        )
        self.passed: Counter[tuple[str, str, int]] = Counter()
        """Unordered requests by engine, route, status."""
        self.early_rejections: Counter[str] = Counter()
        """Refusals before a request is parsed, by reason."""
        self.tenants: Counter[tuple[str, int]] = Counter()
        """Requests by tenant (owner of the key) and status."""
        self.caches: Counter[tuple[str, str]] = Counter()
        """What engines report of their caches, by engine and header."""
        self.aborted = self.retried = self.refused = self.preempted = 0

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(
            f"metropolis_{name}_seconds", what, buckets=BOUNDS_S, registry=self._registry
        )

    def note_caches(self, engine: str, headers: Iterable[tuple[str, str]]) -> None:
        """Count what an answer's headers tell of the caches that it started from."""
        for name, value in headers:
            if name.lower() in (CACHED, REUSED, REUSED_BYTES) and NUMBER.fullmatch(value):
                self.caches[engine, name.lower()] += int(value)

    def count_refused(self, route: str, status: int) -> None:
        """Count a request to `route` that was refused before it was parsed."""
        if route in ORDERED:
            self.requests["", "", status] += 1
        else:
            self.passed["", route, status] += 1

    def forget(self, function: str) -> None:
        """Add its counts to those of OTHER."""
        for engine, name, status in [key for key in self.requests if key[1] == function]:
            self.requests[engine, OTHER, status] += self.requests.pop((engine, name, status))

    def text(
        self,
        up: Mapping[str, bool],
        in_flight: Mapping[str, int],
        waiting: int,
        programs: int,
        connections: int = 0,
    ) -> str:
        """Return all metrics as text; `up` and `in_flight` are by engine."""
        shown = (
            _counter(
                "requests",
                "Requests ended; 499: the client disconnected, 502: the engine was lost.",
                ("engine", "function", "status"),
                self.requests.items(),
            ),
            _counter(
                "passed",
                "Requests forwarded without ordering.",
                ("engine", "route", "status"),
                self.passed.items(),
            ),
            _counter(
                "tenant_requests", "Requests by tenant.", ("tenant", "status"), self.tenants.items()
            ),
            _counter(
                "early_rejections",
                "Refusals before a request is parsed.",
                ("reason",),
                [((reason,), count) for reason, count in self.early_rejections.items()],
            ),
            *(
                _counter(
                    name,
                    what,
                    ("engine",),
                    [((at,), count) for (at, each), count in self.caches.items() if each == header],
                )
                for header, name, what in (
                    (CACHED, "cached_tokens", "Prompt tokens that engines had cached."),
                    (REUSED, "reused_tokens", "Prompt tokens taken from another model's cache."),
                    (REUSED_BYTES, "reused_bytes", "Bytes of the latter."),
                )
            ),
            _gauge("engine_up", "Whether the engine answers.", up),
            _gauge("running_requests", "Requests at the engine.", in_flight),
            _gauge("connections", "Client connections.", connections),
            _gauge("queue_length", "Requests waiting in the gateway.", waiting),
            _gauge("programs", "Programs that have not ended.", programs),
            _counter("aborted", "Requests of clients that left.", (), [((), self.aborted)]),
            _counter("retried", "Retries after an engine was lost.", (), [((), self.retried)]),
            _counter("preempted", "Preemptions by the policy.", (), [((), self.preempted)]),
            _counter("refused", "Requests refused by a full queue.", (), [((), self.refused)]),
        )
        return (generate_latest(_Shown(shown)) + generate_latest(self._registry)).decode()


class _Shown(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counter(
    name: str,
    what: str,
    labels: tuple[str, ...],
    counts: Iterable[tuple[tuple[object, ...], int]],
) -> Metric:
    metric = CounterMetricFamily(f"metropolis_{name}", what, labels=labels)
    for values, count in sorted(counts, key=str):
        metric.add_metric([str(value) for value in values], count)
    return metric


def _gauge(name: str, what: str, values: Mapping[str, int] | int) -> Metric:
    """Return a gauge of one value, or of one value per engine."""
    if isinstance(values, int):
        return GaugeMetricFamily(f"metropolis_{name}", what, values)
    metric = GaugeMetricFamily(f"metropolis_{name}", what, labels=("engine",))
    for engine, value in values.items():
        metric.add_metric([engine], value)
    return metric
