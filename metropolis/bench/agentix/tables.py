"""Tables of `metropolis bench agentix`: our results beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.bench.agentix.measure import TAILS, Measured, Throughput, throughput_at
from metropolis.bench.agentix.systems import AGENTIX, OURS
from metropolis.tables import print_whole

SLOWDOWNS, MULTI_SLOWDOWNS = (2.0, 4.0), (1.3,)
"""Latencies at which throughput is compared, as multiples of the lowest; smaller for many
instances, whose runs are too short to build up such queues."""
# Maximum ratio of Agentix' throughput to that of others at equal latency (§6.3)
PAPER_TIMES = {
    "ShareGPT": {"vLLM": 8.0, "vLLM-opt": 2.0, "MLFQ": 1.5},
    "BFCL": {"vLLM": 8.0, "vLLM-opt": 2.0, "MLFQ": 1.5},
    "LATS": {"vLLM": 5.0, "vLLM-opt": 2.0, "MLFQ": 2.5},
    "mixed": {"vLLM": 15.0, "vLLM-opt": 5.0, "MLFQ": 5.5},
}
PAPER_BALANCER_TIMES = 1.4
"""Maximum gain over round robin and least used (§6.4)."""
PAPER_SHORTER_BY = (0.1, 0.4)
"""Reduction of a batch of chats (§6.5)."""

Key = tuple[str, str, str, int]


def curves_of(measured: Sequence[Measured]) -> dict[Key, list[Measured]]:
    """Group the runs: (workload, system, dispatcher, instances) -> its loads."""
    curves: dict[Key, list[Measured]] = {}
    for one in measured:
        key = (one.workload, one.system, one.dispatcher, one.instances)
        curves.setdefault(key, []).append(one)
    return curves


def throughputs(
    measured: Sequence[Measured], slowdowns: Sequence[float]
) -> dict[Key, list[Throughput]]:
    """Return programs per second at `slowdowns` times the lowest latency of each workload."""
    least_ms: dict[str, float] = {}
    for one in measured:
        least_ms[one.workload] = min(one.average_ms, least_ms.get(one.workload, one.average_ms))
    return {
        key: [throughput_at(curve, slowdown * least_ms[key[0]]) for slowdown in slowdowns]
        for key, curve in curves_of(measured).items()
    }


def ratios_of(ours: Sequence[Throughput], others: Sequence[Throughput]) -> str:
    """Format the ratio of `ours` to `others` at each slowdown; - where the other is unknown."""
    return " and ".join(
        f"{'>' * our.is_lower_bound}{our.per_s / other.per_s:.1f}"
        if other.per_s and not other.is_lower_bound
        else "-"
        for our, other in zip(ours, others, strict=True)
    )


def pooled(curve: Sequence[Measured]) -> list[Measured]:
    """Return the curve with pooled latencies in place of the averages."""
    return [replace(one, average_ms=one.pooled_ms) for one in curve]


def max_ratio(ours: Sequence[Measured], others: Sequence[Measured]) -> Throughput | None:
    """Return the maximum ratio of our throughput to theirs at equal, measured latencies."""
    ratios = []
    for latency_ms in sorted({one.average_ms for one in (*ours, *others)}):
        our, other = throughput_at(ours, latency_ms), throughput_at(others, latency_ms)
        if other.per_s and not other.is_lower_bound:
            ratios.append((our.per_s / other.per_s, our.is_lower_bound))
    return Throughput(*max(ratios)) if ratios else None


def over_seeds(ratios: Sequence[Throughput | None]) -> str:
    """Format one ratio for each seed, and their mean; - where there is none."""
    known = [ratio for ratio in ratios if ratio]
    each = [f"{'>' * one.is_lower_bound}{one.per_s:.2f}" if one else "-" for one in ratios]
    if len(each) < 2 or len(known) < len(each):
        return " | ".join(each)
    mean = sum(one.per_s for one in known) / len(known)
    bound = ">" * any(one.is_lower_bound for one in known)
    return f"{' | '.join(each)} (mean {bound}{mean:.2f})"


def latency_table(workload: str, measured: Sequence[Measured]) -> Table:
    """Return a table with a row for every run of the workload."""
    title = f"{workload}: latency, ms per output token of a program"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    table.add_column("system", no_wrap=True)
    for name in (
        "seed",
        "programs/s",
        "average",
        "pooled",
        *(f"P{tail}" for tail in TAILS),
        "preempted",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in measured:
        if one.workload == workload:
            placed = f", {one.instances} x {one.dispatcher}" if one.instances > 1 else ""
            table.add_row(
                one.system + placed,
                f"{one.seed}",
                f"{one.programs_per_s:.2f}",
                *(
                    f"{ms:.1f}"
                    for ms in (one.average_ms, one.pooled_ms, *map(one.tails_ms.__getitem__, TAILS))
                ),
                f"{one.preemptions}",
            )
    return table


def show(found: dict[str, list[Measured]], console: Console) -> None:
    """Print the latencies, then the ratios derived from them, with one value per seed."""
    for part, measured in found.items():
        if part != "batches":
            for workload in dict.fromkeys(one.workload for one in measured):
                print_whole(latency_table(workload, measured), console)
    lines = {
        "curves": _systems,
        "balancers": _balancers,
        "replicas": _replicas,
        "batches": _batches,
    }
    for part, lines_of in lines.items():
        if part in found:
            for line in lines_of(_by_seed(found[part])):
                console.print(line, soft_wrap=True)


def _by_seed(measured: Sequence[Measured]) -> list[list[Measured]]:
    seeds = dict.fromkeys(one.seed for one in measured)
    return [[one for one in measured if one.seed == seed] for seed in seeds]


def _systems(seeds: Sequence[Sequence[Measured]]) -> Iterator[str]:
    low, high = SLOWDOWNS
    yield f"Throughput at {low:g} and {high:g} times the lowest latency, and the maximum at any:"
    curves = [curves_of(measured) for measured in seeds]
    found = [throughputs(measured, SLOWDOWNS) for measured in seeds]
    names = [our.name for our in OURS]
    for theirs in curves[0]:
        name, other, *_ = theirs
        if other in names:
            continue
        paper = PAPER_TIMES[name].get(other.partition(",")[0])
        suffix = f" (paper: up to {paper:g})" if paper else ""
        yield f"{name}, over {other}{suffix}:"
        for our in OURS:
            ours = name, our.name, our.dispatcher, 1
            equal = " | ".join(ratios_of(one[ours], one[theirs]) for one in found)
            most = over_seeds([max_ratio(one[ours], one[theirs]) for one in curves])
            by_jct = over_seeds(
                [max_ratio(pooled(one[ours]), pooled(one[theirs])) for one in curves]
            )
            yield f"  {our.name} {equal}, up to {most}; pooled latency: up to {by_jct}"


def _balancers(seeds: Sequence[Sequence[Measured]]) -> Iterator[str]:
    yield f"Throughput at {MULTI_SLOWDOWNS[0]:g} times the lowest latency:"
    found = [throughputs(measured, MULTI_SLOWDOWNS) for measured in seeds]
    for theirs in found[0]:
        name, system, balancer, instances = theirs
        if balancer != AGENTIX.dispatcher:
            ours = name, system, AGENTIX.dispatcher, instances
            ratios = " | ".join(ratios_of(one[ours], one[theirs]) for one in found)
            paper = "level" if balancer == "prefix" else f"up to {PAPER_BALANCER_TIMES}"
            yield f"{name}: agentix {ratios} x {balancer} (paper: {paper})"


def _replicas(seeds: Sequence[Sequence[Measured]]) -> Iterator[str]:
    found = [throughputs(measured, MULTI_SLOWDOWNS) for measured in seeds]
    alone = next(key for key in found[0] if key[-1] == 1)
    for key in found[0]:
        ratios = " | ".join(ratios_of(one[key], one[alone]) for one in found)
        yield f"{key[0]}: {key[-1]} replicas {ratios} x one (paper: linear)"


def _batches(seeds: Sequence[Sequence[Measured]]) -> Iterator[str]:
    took_s = [
        {(one.workload, one.system): one.makespan_sim_s for one in measured} for measured in seeds
    ]
    low, high = PAPER_SHORTER_BY
    names = [our.name for our in OURS]
    for name, system in took_s[0]:
        if system not in names:
            paper = f" (paper: {-low:.0%} to {-high:.0%})" if name == "ShareGPT" else ""
            longer = []
            for our in names:
                each = (f"{one[name, our] / one[name, system] - 1:+.0%}" for one in took_s)
                longer.append(f"{our} {' | '.join(each)}")
            yield f"{name}, a batch: {', '.join(longer)} against {system}{paper}"
