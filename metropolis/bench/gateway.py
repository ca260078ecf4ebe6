"""`metropolis bench gateway`: the latency that a gateway adds to a direct connection.

Clients, gateway and stub engine are processes of this machine. The latency of an answer is drawn
by the prompt. Each request is sent twice, directly and through the gateway; the difference is the
added latency. At any time half of the clients send directly, so both ways see the same load.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import numpy as np

from metropolis.bench import METROPOLIS, server
from metropolis.bench.stub_server import MODEL, stub_server
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.base import Request
from metropolis.progress import progress_bar

SEED = 1
TARGET_MS = 3.0
"""Target for the added median latency, at any concurrency."""


@dataclass(frozen=True)
class Load:
    """Clients that send requests one after the other, each of them both ways in turn."""

    clients: int
    questions_each: int
    mean_s: float
    """Mean of the stub's latencies; the starts of the clients are spread over it."""


LOADS = (Load(1, 300, 0.0), Load(200, 6, 0.5), Load(2000, 1, 5.0))


@dataclass(frozen=True)
class Measured:
    """Milliseconds that the gateway adds to the latency of one request."""

    clients: int
    in_flight: float
    """Average requests in the gateway: those of half of the clients; the others send directly."""
    mean_latency_s: float
    requests: int
    """Requests through the gateway."""
    direct_p50_ms: float
    """Median of the whole latency, the stub's included."""
    added_p50_ms: float
    added_p99_ms: float
    cpu_ms_per_request: float
    """CPU time of the gateway."""


def request_of(client: int, number: int) -> Request:
    """Make a unique request."""
    question = f"You are agent {client}. It is step {number}. What do you do next?"
    return Request(
        agent=client, step=number, function="act", prompt=None, max_tokens=16, temperature=0.0,
        messages=({"role": "user", "content": question},), seed=0, priority=0, program=str(client),
    )  # fmt: skip


async def paired_latencies_s(load: Load, direct: str, gateway: str) -> list[tuple[float, float]]:
    """Return the latencies of every request, sent directly and through the gateway."""
    backends = [Compatible(url, MODEL) for url in (direct, gateway)]
    found: list[tuple[float, float]] = []

    async def send_all(client: int) -> None:
        await asyncio.sleep(client / load.clients * load.mean_s)
        for number in range(load.questions_each):
            latencies_s = [0.0, 0.0]
            for way in (0, 1) if (client + number) % 2 else (1, 0):
                began = time.perf_counter()
                await backends[way].complete(request_of(client, number))
                latencies_s[way] = time.perf_counter() - began
            found.append((latencies_s[0], latencies_s[1]))

    await asyncio.gather(*map(send_all, range(load.clients)))
    for backend in backends:
        await backend.close()
    return found


def cpu_s_of(gateway: str) -> float:
    """Return the gateway's CPU time so far."""
    with urllib.request.urlopen(f"{gateway}/metrics") as metrics:
        lines = metrics.read().decode().splitlines()
    return next(float(ln.split()[1]) for ln in lines if ln.startswith("process_cpu_seconds_total"))


def measure(load: Load, repetitions: int, progress: Callable[[int], None]) -> Measured:
    """Measure both ways at once; call `progress` after each run."""
    pairs: list[tuple[float, float]] = []
    options = ("--port", "0", "--at-once", "4096")
    with (
        stub_server(load.mean_s, SEED) as engine,
        server([*METROPOLIS, "gateway", "--engine", engine, *options]) as gateway,
    ):
        cpu_s = -cpu_s_of(gateway)
        for _ in range(repetitions):
            gc.collect()
            pairs += asyncio.run(paired_latencies_s(load, engine, gateway))
            progress(1)
        cpu_s += cpu_s_of(gateway)
    direct_s, through_s = np.array(pairs).T
    added_s = through_s - direct_s
    return Measured(
        load.clients,
        max(1.0, load.clients / 2),
        load.mean_s,
        len(pairs),
        1000 * float(np.median(direct_s)),
        1000 * float(np.median(added_s)),
        1000 * float(np.percentile(added_s, 99)),
        1000 * cpu_s / len(pairs),
    )


@click.command("gateway")
@click.option("--repetitions", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(repetitions: int, as_json: bool) -> None:
    """Measure the latency that a gateway adds; takes some minutes.

    The calls are real HTTP requests to a stub server on this machine; its latencies are random.
    """
    with progress_bar(len(LOADS) * repetitions, "runs") as (advance, describe):
        rows = []
        for load in LOADS:
            describe(f"{load.clients} clients")
            rows.append(measure(load, repetitions, advance))
    if as_json:
        click.echo(json.dumps({"loads": [asdict(row) for row in rows]}, indent=2))
        return
    for row in rows:
        click.echo(
            f"{row.in_flight:>5g} in flight, answers take {row.mean_latency_s:g} s: "
            f"direct p50 {row.direct_p50_ms:,.1f} ms, added p50 {row.added_p50_ms:.2f} ms "
            f"(target {TARGET_MS:g}), p99 {row.added_p99_ms:.1f} ms, "
            f"CPU {row.cpu_ms_per_request:.2f} ms per request"
        )
