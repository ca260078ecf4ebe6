"""Prometheus metrics of a run, served on the loopback interface by a thread of its own.

They are read from the run at each request for them; the run itself only times committed calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from metropolis.listening import cannot_listen
from metropolis.llm.client import Client
from metropolis.llm.usage import Usage, total
from metropolis.runtime.live.executor import Executor
from metropolis.runtime.live.optimistic import OptimisticWorkerPool
from metropolis.store.execution import Execution
from metropolis.types import Step

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
FUNCTIONS_MAX = 100
OTHER = "other"
"""Label of all functions after the first FUNCTIONS_MAX."""
HOST = "127.0.0.1"
LOCAL = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?")
"""Host headers that are answered."""
CLOSING_S = 0.1
"""Longest time that closing the server takes."""
_BY_FUNCTION = (
    ("calls", "Calls answered by the model since this start.", "calls"),
    ("reused_calls", "Calls answered from the journal.", "reused"),
    ("retries", "Attempts that failed and were repeated.", "retries"),
    ("failed_calls", "Calls that ended in an error.", "failures"),
    ("prompt_tokens", "Prompt tokens of answered calls.", "prompt_tokens"),
    ("output_tokens", "Output tokens of answered calls.", "output_tokens"),
    ("lost_tokens", "Tokens, at most, of attempts without a usable answer.", "lost_tokens"),
    ("cost", "Cost of answers and lost tokens, in the currency of the prices.", "cost"),
)
"""(name, description, field of `Usage`) of each counter."""


class RunMetrics(Collector):
    """The metrics of one run."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "metropolis_run_call_seconds",
            "From request to answer, on the run's clock, of calls of committed steps.",
            ("function",),
            buckets=BOUNDS_S,
            registry=self.registry,
        )
        self._run: tuple[Executor, Client, Step, OptimisticWorkerPool | None] | None = None
        self._functions: set[str] = set()

    def show(
        self,
        executor: Executor,
        client: Client,
        target: Step,
        optimistic: OptimisticWorkerPool | None,
    ) -> None:
        """Show this run, which ends at step `target`."""
        self._run = executor, client, target, optimistic

    def recorded(self, record: Callable[[Execution], None]) -> Callable[[Execution], None]:
        """`record`, which also times the calls."""

        def time_calls(execution: Execution) -> None:
            for calls in execution.calls.values():
                for call in calls:
                    if call.completed is not None and not call.failed:
                        seconds = self._seconds.labels(self._label(call.function))
                        seconds.observe(call.completed - call.sent)
            record(execution)

        return time_calls

    def collect(self) -> Iterable[Metric]:
        """See Collector. It runs in another thread than the run."""
        if self._run is None:
            return
        executor, client, target, optimistic = self._run
        running = executor.running
        for name, what, value in (
            ("floor", "The smallest step that an agent has still to run.", executor.reported_floor),
            ("front", "The greatest step that an agent has reached.", executor.newest_step),
            ("target", "The step at which the run ends.", target),
            ("calls_in_flight", "Calls sent and not answered.", client.gate.in_flight),
        ):
            yield GaugeMetricFamily(f"metropolis_run_{name}", what, value)
        agents = GaugeMetricFamily(
            "metropolis_run_agents",
            "running: their step may run and is not committed; waiting: for others or the end.",
            labels=("state",),
        )
        agents.add_metric(["running"], running)
        agents.add_metric(["waiting"], executor.agents - running)
        yield agents
        yield CounterMetricFamily(
            "metropolis_run_wasted_calls",
            "Calls of agents that ran ahead, sent in vain.",
            0 if optimistic is None else optimistic.wasted_calls,
        )
        grouped: dict[str, list[Usage]] = {}
        for function, usage in client.usage.copy().items():
            grouped.setdefault(self._label(function), []).append(usage)
        sums = {label: total(usages) for label, usages in grouped.items()}
        for name, what, field in _BY_FUNCTION:
            counter = CounterMetricFamily(f"metropolis_run_{name}", what, labels=("function",))
            for label, usage in sums.items():
                counter.add_metric([label], getattr(usage, field))
            yield counter

    def _label(self, function: str) -> str:
        if function not in self._functions:
            if len(self._functions) >= FUNCTIONS_MAX:
                return OTHER
            self._functions.add(function)
        return function


class MetricsServer:
    """Serves metrics at `port` of the loopback interface, from `serve` on.

    Raises MetropolisError if the port cannot be used.
    """

    def __init__(self, port: int) -> None:
        self._metrics = RunMetrics()
        try:
            self._server = make_server(
                HOST, port, _local(make_wsgi_app(self._metrics.registry)), _Server, _SilentHandler
            )
        except OSError as error:
            raise cannot_listen(HOST, port, error, "port for metrics") from None
        self._thread = Thread(
            target=self._server.serve_forever, args=(CLOSING_S,), name="metrics", daemon=True
        )

    def recorded(self, record: Callable[[Execution], None]) -> Callable[[Execution], None]:
        """See RunMetrics."""
        return self._metrics.recorded(record)

    def serve(
        self,
        executor: Executor,
        client: Client,
        target: Step,
        optimistic: OptimisticWorkerPool | None,
    ) -> None:
        """Serve the metrics of this run, which ends at step `target`."""
        self._metrics.show(executor, client, target, optimistic)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _local(application: WSGIApplication) -> WSGIApplication:
    """`application`, for requests to this machine by name: a web page whose name resolves to it
    must not read the answers (DNS rebinding)."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if LOCAL.fullmatch(environ.get("HTTP_HOST", "")):
            return application(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"The host of the URL should be 127.0.0.1 or localhost.\n"]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: standard error belongs to the run."""
