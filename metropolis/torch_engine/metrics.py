"""The engine's metrics in Prometheus's text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from metropolis.torch_engine.engine import Engine, Prefill

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
PREFIX = "metropolis_engine"


class Metrics:
    """Counters and histograms of one engine."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests ended.", "model", "finish")
        self.generated = self._counter("generated_tokens", "Tokens of answers.", "model")
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts.", "model")
        self._cached = self._counter(
            "cached_tokens", "Tokens of prompts in the model's own cache.", "model"
        )
        self._reused = self._counter(
            "reused_tokens", "Tokens of prompts from another model's cache.", "sender", "model"
        )
        self._reused_bytes = self._counter(
            "reused_bytes", "KV and inputs (E) of those tokens.", "sender", "model"
        )
        self._prefill = self._histogram("prefill", "Duration of a prefill.")
        self._ttft = self._histogram("ttft", "From a request's arrival to its first token.")
        self._running = self._gauge("running", "Requests that are decoded.")
        self._waiting = self._gauge("waiting", "Requests that wait for their prefill.")
        self._cache_bytes = self._gauge("cache_bytes", "Size of the caches.")

    def note_prefill(self, prefill: Prefill) -> None:
        """Count a prefill."""
        origin, model = prefill.origin, prefill.model
        self._prompt.labels(model).inc(prefill.prompt_tokens)
        self._cached.labels(model).inc(origin.cached_tokens)
        if origin.sender:
            self._reused.labels(origin.sender, model).inc(origin.reused_tokens)
            self._reused_bytes.labels(origin.sender, model).inc(origin.reused_bytes)
        self._prefill.labels(model).observe(prefill.prefill_s)
        self._ttft.labels(model).observe(prefill.ttft_s)

    def text(self, engine: Engine) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self._running.set(engine.running)
        self._waiting.set(engine.waiting)
        self._cache_bytes.set(engine.cache_bytes)
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", what, labels, registry=self._registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", what, registry=self._registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(
            f"{PREFIX}_{name}_seconds", what, ["model"], buckets=BOUNDS_S, registry=self._registry
        )
