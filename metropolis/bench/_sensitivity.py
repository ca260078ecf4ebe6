"""How a simulated run reacts to errors of its profile, and what other profiles predict for it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np

from metropolis._core import Profile
from metropolis.bench._real_run import TOKENS_MAX, Run, simulate_run
from metropolis.sim.profiles import ProfileEntry, load_entry, profile_names
from metropolis.types import MetropolisError

STATISTICS = ("ttft_mean_s", "ttft_p50_s", "tpot_mean_s", "latency_mean_s")
COSTS = ("w_ms", "g_ms", "h_ms", "b_ms", "k_ms", "k_mixed_ms", "q_ms", "c_ms")

Values = dict[str, float | None]
"""A value for each of STATISTICS; None where there is none."""


def _scale_costs(factor: float) -> Callable[[Profile], None]:
    def change(profile: Profile) -> None:
        for field in COSTS:
            setattr(profile, field, getattr(profile, field) * factor)

    return change


def _add_cpu_ms(profile: Profile) -> None:
    profile.w_ms += 1
    profile.h_ms += 1


def _reduce_kv(profile: Profile) -> None:
    profile.kv_capacity_tokens = int(profile.kv_capacity_tokens * 0.95)


def _double_sequences(profile: Profile) -> None:
    profile.max_sequences = min(profile.max_sequences * 2, TOKENS_MAX)


def _halve_sequences(profile: Profile) -> None:
    profile.max_sequences = max(profile.max_sequences // 2, 1)


CHANGES: dict[str, Callable[[Profile], None]] = {
    "all costs +5 %": _scale_costs(1.05),
    "all costs -5 %": _scale_costs(0.95),
    "CPU +1 ms per iteration": _add_cpu_ms,
    "KV capacity -5 %": _reduce_kv,
    "max_sequences x 2": _double_sequences,
    "max_sequences / 2": _halve_sequences,
}


@dataclass(frozen=True)
class Prediction:
    """The run on another profile; all values are None if a request does not fit into its KV."""

    profile: str
    estimate: bool
    source: str
    seconds: Values


def statistics(run: Run, profile: Profile) -> Values:
    """Simulate the run; return STATISTICS in seconds. Raises MetropolisError like simulate_run."""
    metrics, _ = simulate_run(run, profile)
    tpot = metrics["tpot"]
    return {
        "ttft_mean_s": float(metrics["ttft"].mean()),
        "ttft_p50_s": float(np.median(metrics["ttft"])),
        "tpot_mean_s": float(tpot.mean()) if len(tpot) else None,
        "latency_mean_s": float(metrics["latency"].mean()),
    }


def _if_it_fits(run: Run, profile: Profile) -> Values:
    try:
        return statistics(run, profile)
    except MetropolisError:
        return dict.fromkeys(STATISTICS)


def sensitivity(run: Run, profile: Profile) -> dict[str, Values]:
    """The relative change of each of STATISTICS for each of CHANGES.

    None if the statistic is 0 before the change, or if a request no longer fits into the KV.
    """
    before = statistics(run, profile)
    rows: dict[str, Values] = {}
    for name, change in CHANGES.items():
        changed = copy(profile)
        change(changed)
        rows[name] = {
            statistic: after / base - 1
            if after is not None and (base := before[statistic])
            else None
            for statistic, after in _if_it_fits(run, changed).items()
        }
    return rows


def predictions(run: Run, entry: ProfileEntry) -> list[Prediction]:
    """The run on the package's other profiles of the model, in order of their names.

    They have the KV capacity of their own and the `chunk_tokens` and `max_sequences` of `entry`,
    which are settings of the engine. Empty for a profile from a file.
    """
    model = entry.name.partition("/")[0]
    rows = []
    for name in profile_names():
        if name == entry.name or name.partition("/")[0] != model:
            continue
        other = load_entry(name)
        other.profile.chunk_tokens = entry.profile.chunk_tokens
        other.profile.max_sequences = entry.profile.max_sequences
        values = _if_it_fits(run, other.profile)
        rows.append(Prediction(name, other.estimate, other.source, values))
    return rows
