"""`metropolis bench instances`: speed of the simulated LLM instances."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

import click
import numpy as np
from rich.table import Table

from metropolis._core import Profile, simulate
from metropolis.sim.profiles import load_profile
from metropolis.tables import plain_console, print_whole

PROMPT_TOKENS, OUTPUT_TOKENS = 640, 22
"""AI Metropolis §4.1: averages of 642.6 and 21.9."""

VIDUR_REQUESTS_PER_CPU_S = {"saturated": 10_750, "1 req/s": 1_420}
"""vidur with the same requests on a machine like the development machine (2 shared cores)."""


@dataclass(frozen=True)
class Load:
    """Arrival of requests: `rate_per_s` 0 is all at once; `concurrency` 0 is an open loop."""

    name: str
    rate_per_s: float = 0
    concurrency: int = 0
    instances: int = 1
    varied: bool = False
    """Lengths are lognormal with the same means; every request has one of 100 priorities."""
    kv_capacity_tokens: int | None = None
    prefix_tokens: int = 0
    """Length of the prefix that each request shares with 1/50 of the others."""


LOADS = (
    Load("saturated"),
    Load("1 req/s", rate_per_s=1),
    Load("15 req/s", rate_per_s=15),
    Load("64-deep closed loop", concurrency=64),
    Load("1-deep closed loop", concurrency=1),
    Load("saturated, 8 instances", instances=8),
    Load("saturated, lengths and priorities vary", varied=True),
    Load("the same in 16k KV tokens (preemption)", varied=True, kv_capacity_tokens=16_384),
    Load("saturated, shared prefixes of 320", prefix_tokens=320),
)


@dataclass(frozen=True)
class Measured:
    """One row of the result; CPU time is the median of the repeats."""

    load: str
    requests: int
    requests_per_cpu_s: float
    cpu_s: float
    makespan_sim_s: float
    preemptions: int
    vidur_requests_per_cpu_s: int | None


def measure(load: Load, profile: Profile, requests: int, repeats: int) -> Measured:
    """Simulate `requests` requests under `load`, `repeats` times."""
    rng = np.random.default_rng(0)
    columns = _columns(load, requests, rng)
    kv_capacity_tokens = profile.kv_capacity_tokens
    profile.kv_capacity_tokens = load.kv_capacity_tokens or kv_capacity_tokens
    cpu_s = []
    for _ in range(repeats):
        start_s = process_time()
        result = simulate(
            profile,
            **columns,
            instances=load.instances,
            concurrency=load.concurrency,
            prefix_reuse=load.prefix_tokens > 0,
        )
        cpu_s.append(process_time() - start_s)
    profile.kv_capacity_tokens = kv_capacity_tokens
    median_s = float(np.median(cpu_s))
    return Measured(
        load.name,
        requests,
        requests / median_s,
        median_s,
        float(result["last_token_sim_s"].max()),
        result["preemptions"],
        VIDUR_REQUESTS_PER_CPU_S.get(load.name),
    )


def _columns(load: Load, n: int, rng: np.random.Generator) -> dict[str, Any]:
    gaps = rng.exponential(1 / load.rate_per_s, n) if load.rate_per_s else np.zeros(n)
    columns: dict[str, Any] = {
        "arrival_sim_s": np.cumsum(gaps),
        "prompt_tokens": np.full(n, PROMPT_TOKENS, np.int32),
        "output_tokens": np.full(n, OUTPUT_TOKENS, np.int32),
    }
    if load.varied:
        factors = rng.lognormal(-0.125, 0.5, (2, n))  # the mean is 1
        columns["prompt_tokens"] = np.maximum(1, PROMPT_TOKENS * factors[0]).astype(np.int32)
        columns["output_tokens"] = np.maximum(1, OUTPUT_TOKENS * factors[1]).astype(np.int32)
        columns["priority"] = rng.integers(0, 100, n)
    if load.prefix_tokens:
        columns["prefix_id"] = rng.integers(0, 50, n)
        columns["prefix_tokens"] = np.full(n, load.prefix_tokens, np.int32)
    return columns


@click.command("instances")
@click.option("--profile", default="llama-3-8b/a100", show_default=True, help="Name or TOML file.")
@click.option("--requests", type=click.IntRange(1), default=500_000, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
def command(profile: str, requests: int, repeats: int, as_json: bool) -> None:
    """Measure requests simulated per CPU-second, 640 tokens in and 22 out, at several loads."""
    loaded = load_profile(profile)
    rows = [measure(load, loaded, requests, repeats) for load in LOADS]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table(title=f"{requests:,} requests of 640 -> 22 tokens, {profile}")
    for name in ("load", "requests per CPU-s", "vidur", "virtual hours", "preemptions"):
        table.add_column(name, justify="left" if name == "load" else "right")
    for row in rows:
        table.add_row(
            row.load,
            f"{row.requests_per_cpu_s:,.0f}",
            f"{row.vidur_requests_per_cpu_s:,}" if row.vidur_requests_per_cpu_s else "",
            f"{row.makespan_sim_s / 3600:,.1f}",
            f"{row.preemptions:,}",
        )
    print_whole(table, plain_console())
