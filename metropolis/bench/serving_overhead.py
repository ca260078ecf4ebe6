"""`metropolis bench serving-overhead`: cost of policies and dispatchers, beside Kairos' figures.

Measured on this machine; only the requests are simulated. Kairos §7.7 reports 3.6 ms to sort the
queue, 4.1 ms to place a request (it gives no length of the queue), and 0.1 to 4.3 s for the scaling
of 10 to 5,000 functions; our updates include the distances.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from random import Random

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.kairos.latency import LEVELS
from metropolis.policy.kairos.priority import distance_from_zero
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.policy.queue import RequestQueue
from metropolis.progress import progress_bar
from metropolis.tables import print_whole

COMBINED_POLICIES = ("step+kairos", "step+atlas")
PAPER_MS = {POLICIES: 3.6, DISPATCHERS: 4.1}
PAPER_UPDATE_S = {10: 0.1, 5000: 4.3}
UPDATED_FUNCTIONS = (10, 50, 100, 500, 1000, 5000)
KIND_NAMES = {POLICIES: "policy", DISPATCHERS: "dispatcher"}
KINDS, STAGES = 12, 4
"""Kinds and stages of programs; each stage of each kind is a function."""
RUNNING = 128
"""Requests running on the dispatcher's instances."""
FLEET = Fleet.uniform(8, capacity_tokens=100_000, tokens_per_s=20.0)


@dataclass(frozen=True)
class Overhead:
    """CPU time per request, from its arrival to its answer."""

    kind: str
    name: str
    mean_us: float
    p99_us: float
    max_us: float


@dataclass(frozen=True)
class Update:
    """Cost of computing the order of `functions` functions from scratch."""

    functions: int
    cpu_s: float
    """CPU time of all threads."""
    peak_mb: float


class _CpuTimer:
    """Measures CPU time within `running`, per request; wall time would include other processes."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        began_s = time.thread_time()
        yield
        self.cpu_s[-1] += time.thread_time() - began_s

    def overhead(self, kind: str, name: str) -> Overhead:
        took_us = 1e6 * np.array(self.cpu_s)
        p99_us = float(np.percentile(took_us, 99))
        return Overhead(kind, name, float(took_us.mean()), p99_us, float(took_us.max()))


def _requests(seed: int) -> Iterator[QueuedRequest]:
    """Yield requests of programs of STAGES calls, endlessly, one second apart."""
    draw, number = Random(seed), 0
    for program in count():
        arrived_s, kind = float(number), draw.randrange(KINDS)
        for stage in range(STAGES):
            request = QueuedRequest(
                number,
                f"program {program}",
                f"function {kind} {stage}",
                draw.randint(100, 2000) + 300 * stage,
                float(number),
                arrived_s,
                f"function {kind} {stage - 1}" if stage else None,
                step=draw.randrange(1000),
                stages_left=STAGES - stage,
                prefix=((kind, 150), *((KINDS + program * STAGES + i, 300) for i in range(stage))),
            )
            number += 1
            yield request


def _served(request: QueuedRequest, instance: int, now_s: float, draw: Random) -> ServedRequest:
    took_s = draw.lognormvariate(1.0, 0.5) + len(request.function) / 2
    return ServedRequest(request, instance, max(0.0, now_s - took_s), now_s, draw.randint(10, 500))


def policy_overhead(name: str, queued: int, requests: int, seed: int) -> Overhead:
    """Measure queueing a request, choosing the next one, and learning from its answer."""
    policy: Policy = named(POLICIES, name)()
    queue, arriving, draw, timer = RequestQueue(policy), _requests(seed), Random(seed), _CpuTimer()
    left: Counter[str] = Counter()
    for number, request in enumerate(islice(arriving, queued + requests)):
        left[request.program] += 1
        if number < queued:
            policy.arrived(request)
            queue.push(request)
            continue
        timer.cpu_s.append(0.0)
        with timer.running():
            policy.arrived(request)
            queue.push(request)
            policy.passed(request.arrived_s)
            first = queue.pop()
            policy.started(first, request.arrived_s)
        left[first.program] -= 1
        served = _served(first, 0, request.arrived_s, draw)
        with timer.running():
            policy.completed(served)
            if not left[first.program]:
                policy.program_ended(first.program)
    return timer.overhead(POLICIES, name)


def dispatcher_overhead(name: str, requests: int, seed: int) -> Overhead:
    """Measure placing a request on busy instances, retries included, and handling its answer."""
    dispatcher: Dispatcher = named(DISPATCHERS, name)(FLEET)
    draw, timer = Random(seed), _CpuTimer()
    placed: deque[tuple[QueuedRequest, int]] = deque()

    def answer(now_s: float) -> None:
        served = _served(*placed.popleft(), now_s, draw)
        with timer.running():
            dispatcher.completed(served)

    def place(request: QueuedRequest) -> int | None:
        with timer.running():
            return dispatcher.place(request, request.arrived_s)

    for request in islice(_requests(seed), requests):
        timer.cpu_s.append(0.0)
        if len(placed) == RUNNING:
            answer(request.arrived_s)
        while (instance := place(request)) is None:
            answer(request.arrived_s)
        placed.append((request, instance))
    return timer.overhead(DISPATCHERS, name)


def update(functions: int, seed: int) -> Update:
    """Measure Kairos' order of functions with lognormal remaining latencies."""
    rng = np.random.default_rng(seed)
    medians = rng.lognormal(2.0, 1.0, (functions, 1))
    quantiles = list(np.sort(medians * rng.lognormal(0.0, 0.5, (functions, LEVELS)), axis=1))
    began_s = time.process_time()
    distance_from_zero(quantiles)
    cpu_s = time.process_time() - began_s
    tracemalloc.start()
    distance_from_zero(quantiles)
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return Update(functions, cpu_s, peak_mb)


@click.command("serving-overhead")
@click.option("--queued", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option("--requests", type=click.IntRange(100, 10**8), default=20_000, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(queued: int, requests: int, seed: int, as_json: bool) -> None:
    """Measure the cost of ordering and placing a request while others wait."""
    policies, dispatchers = [*names_of(POLICIES), *COMBINED_POLICIES], names_of(DISPATCHERS)
    overheads, updates = [], []
    total = len(policies) + len(dispatchers) + len(UPDATED_FUNCTIONS)
    with progress_bar(total, "measurements") as (advance, describe):
        for name in policies:
            describe(name)
            overheads.append(policy_overhead(name, queued, requests, seed))
            advance(1)
        for name in dispatchers:
            describe(name)
            overheads.append(dispatcher_overhead(name, requests, seed))
            advance(1)
        for functions in UPDATED_FUNCTIONS:
            describe(f"{functions} functions")
            updates.append(update(functions, seed))
            advance(1)
    if as_json:
        found = {
            "queued": queued,
            "overheads": [asdict(one) for one in overheads],
            "updates": [asdict(one) for one in updates],
            "paper": {"ms": PAPER_MS, "update_s": PAPER_UPDATE_S},
        }
        click.echo(json.dumps(found, indent=2))
        return
    _print(overheads, updates, queued, Console())


def _print(
    overheads: Sequence[Overhead], updates: Sequence[Update], queued: int, console: Console
) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"Per request, {queued:,} queued; CPU time in µs")
    for name in ("", "name", "mean", "p99", "max", "a tenth of Kairos'"):
        table.add_column(name, justify="left" if name in ("", "name") else "right", no_wrap=True)
    for one in overheads:
        times = (one.mean_us, one.p99_us, one.max_us, 100 * PAPER_MS[one.kind])
        table.add_row(KIND_NAMES[one.kind], one.name, *(f"{time_us:,.1f}" for time_us in times))
    print_whole(table, console)
    table = Table(box=box.SIMPLE_HEAD, title="Update of Kairos' order; CPU time")
    for name in ("functions", "seconds", "peak MB", "paper's seconds"):
        table.add_column(name, justify="right")
    for row in updates:
        paper = PAPER_UPDATE_S.get(row.functions)
        table.add_row(
            f"{row.functions:,}",
            f"{row.cpu_s:.4f}",
            f"{row.peak_mb:.1f}",
            "" if paper is None else f"{paper:g}",
        )
    print_whole(table, console)
