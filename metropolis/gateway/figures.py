"""What the gateway counts, as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from time import process_time

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
OTHER = "other"
"""Stands for the functions beyond those that are told apart."""
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Histogram:
    """Seconds, counted between BOUNDS_S."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str, what: str) -> Iterable[str]:
        """The metric `name`."""
        yield from _head(name, "histogram", what)
        total = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum_s:.6f}"
        yield f"{name}_count {total}"


class Figures:
    """Of one gateway."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By engine (none: it was at no engine), function, status."""
        self.latency, self.queueing = Histogram(), Histogram()
        self.passed: Counter[tuple[str, str, int]] = Counter()
        """Not ordered, by engine, route, status."""
        self.turned_away: Counter[str] = Counter()
        """By reason: what was refused before it became a request."""
        self.tenants: Counter[tuple[str, int]] = Counter()
        """Requests by whose key they had, and status."""
        self.aborted = self.retried = self.refused = self.preempted = 0

    def forget(self, function: str) -> None:
        """Add its counts to those of OTHER."""
        for engine, name, status in [key for key in self.requests if key[1] == function]:
            self.requests[engine, OTHER, status] += self.requests.pop((engine, name, status))

    def text(
        self,
        up: Mapping[str, bool],
        at_work: Mapping[str, int],
        waiting: int,
        programs: int,
        connections: int = 0,
    ) -> str:
        """All of it; `up` and `at_work` by engine."""
        lines = [
            *_head(
                "metropolis_requests_total",
                "counter",
                "Requests that have ended; 499: the client left, 502: the engine was lost.",
            )
        ]
        for (engine, function, status), count in sorted(self.requests.items()):
            labels = _labels(engine=engine, function=function, status=str(status))
            lines.append(f"metropolis_requests_total{labels} {count}")
        lines += _head("metropolis_passed_total", "counter", "Requests that no policy orders.")
        for (engine, route, status), count in sorted(self.passed.items()):
            labels = _labels(engine=engine, route=route, status=str(status))
            lines.append(f"metropolis_passed_total{labels} {count}")
        lines += _gauges("metropolis_engine_up", "Whether the engine answers.", up)
        lines += _gauges("metropolis_running_requests", "Requests at the engine.", at_work)
        lines += _head(
            "metropolis_turned_away_total",
            "counter",
            "What was refused before it became a request.",
        )
        for reason, count in sorted(self.turned_away.items()):
            lines.append(f"metropolis_turned_away_total{_labels(reason=reason)} {count}")
        lines += _head("metropolis_tenant_requests_total", "counter", "Requests by tenant.")
        for (tenant, status), count in sorted(self.tenants.items()):
            labels = _labels(tenant=tenant, status=str(status))
            lines.append(f"metropolis_tenant_requests_total{labels} {count}")
        for name, kind, what, value in (
            ("connections", "gauge", "Connections of clients.", connections),
            ("queue_length", "gauge", "Requests that wait in the gateway.", waiting),
            ("programs", "gauge", "Programs that have not ended.", programs),
            ("aborted_total", "counter", "Requests whose client has left.", self.aborted),
            ("retried_total", "counter", "Requests sent anew, their engine lost.", self.retried),
            ("preempted_total", "counter", "Requests put back by the policy.", self.preempted),
            ("refused_total", "counter", "Requests refused, the queue full.", self.refused),
        ):
            lines += [*_head(f"metropolis_{name}", kind, what), f"metropolis_{name} {value}"]
        lines += _head("process_cpu_seconds_total", "counter", "Processor time of the gateway.")
        lines.append(f"process_cpu_seconds_total {process_time():.6f}")
        lines += self.latency.lines(
            "metropolis_latency_seconds", "From a request's arrival to its answer's end."
        )
        lines += self.queueing.lines(
            "metropolis_queueing_seconds", "How long a request that was answered was at no engine."
        )
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, what: str) -> Iterable[str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}"


def _gauges(name: str, what: str, values: Mapping[str, int]) -> Iterable[str]:
    yield from _head(name, "gauge", what)
    for engine, value in values.items():
        yield f"{name}{_labels(engine=engine)} {int(value)}"


def _labels(**values: str) -> str:
    inner = ",".join(f'{key}="{value.translate(ESCAPES)}"' for key, value in values.items())
    return f"{{{inner}}}"
