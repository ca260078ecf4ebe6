"""How a simulated run reacts to errors of its model, and what other profiles predict for it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from metropolis._core import Profile
from metropolis.bench._real_run import TOKENS_MAX, Run, simulate_run
from metropolis.sim.engine_rules import ENGINE_RULES
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import COSTS, ProfileEntry, load_entry, profile_names
from metropolis.types import MetropolisError

STATISTICS = ("ttft_mean_s", "ttft_p50_s", "tpot_mean_s", "latency_mean_s")

Values = dict[str, float | None]
"""A value for each of STATISTICS; None where there is none."""


@dataclass(frozen=True)
class Engine:
    """The engine that is simulated."""

    name: str
    """One of ENGINE_RULES."""
    base: Profile
    """The profile without the engine's rules."""
    profile: Profile
    options: PoolOptions

    @classmethod
    def of(cls, name: str, base: Profile) -> Engine:
        """An engine with its default rules."""
        rules = ENGINE_RULES[name]
        return cls(name, base, rules.profile(base), rules.options())


Change = Callable[[Engine], Engine]


def _with_fields(**change: Callable[[float], float]) -> Change:
    def apply(engine: Engine) -> Engine:
        profile = copy(engine.profile)
        for field, function in change.items():
            setattr(profile, field, function(getattr(profile, field)))
        return replace(engine, profile=profile)

    return apply


def _costs(factor: float) -> Change:
    return _with_fields(**dict.fromkeys(COSTS, lambda ms: ms * factor))


def _with_watermark(engine: Engine) -> Engine:
    return replace(engine, options=replace(engine.options, watermark=0.01))


def _plus(more: float) -> Callable[[float], float]:
    return lambda value: value + more


def _times(factor: float) -> Callable[[float], int]:
    return lambda value: min(max(int(value * factor), 1), TOKENS_MAX)


CHANGES: dict[str, Change] = {
    "all costs +5 %": _costs(1.05),
    "all costs -5 %": _costs(0.95),
    "CPU +1 ms per iteration": _with_fields(w_ms=_plus(1), h_ms=_plus(1)),
    "CPU +10 us per sequence": _with_fields(b_ms=_plus(0.01)),
    "CPU +1 ms per prefill": _with_fields(c_ms=_plus(1)),
    "KV capacity -5 %": _with_fields(kv_capacity_tokens=_times(0.95)),
    "watermark 1 %": _with_watermark,
    "chunk_tokens x 4": _with_fields(chunk_tokens=_times(4)),
    "max_sequences x 2": _with_fields(max_sequences=_times(2)),
    "max_sequences / 2": _with_fields(max_sequences=_times(0.5)),
}


@dataclass(frozen=True)
class Prediction:
    """The run on another profile; all values are None if a request does not fit into its KV."""

    profile: str
    estimate: bool
    source: str
    seconds: Values


def statistics(run: Run, engine: Engine) -> Values:
    """Simulate the run; return STATISTICS in seconds. Raises MetropolisError like simulate_run."""
    metrics, _ = simulate_run(run, engine.profile, engine.options)
    tpot = metrics["tpot"]
    return {
        "ttft_mean_s": float(metrics["ttft"].mean()),
        "ttft_p50_s": float(np.median(metrics["ttft"])),
        "tpot_mean_s": float(tpot.mean()) if len(tpot) else None,
        "latency_mean_s": float(metrics["latency"].mean()),
    }


def _if_it_fits(run: Run, engine: Engine) -> Values:
    try:
        return statistics(run, engine)
    except MetropolisError:
        return dict.fromkeys(STATISTICS)


def sensitivity(run: Run, engine: Engine) -> dict[str, Values]:
    """The relative change of each of STATISTICS for CHANGES and for the rules of other engines.

    None if the statistic is 0 before the change, or if a request no longer fits into the KV.
    """
    before = statistics(run, engine)
    changed = {name: change(engine) for name, change in CHANGES.items()}
    for name in ENGINE_RULES:
        if name != engine.name:
            changed[f"rules of {name}"] = Engine.of(name, engine.base)
    return {
        name: {
            statistic: after / base - 1
            if after is not None and (base := before[statistic])
            else None
            for statistic, after in _if_it_fits(run, other).items()
        }
        for name, other in changed.items()
    }


def predictions(run: Run, entry: ProfileEntry, engine: Engine) -> list[Prediction]:
    """The run on the package's other profiles of the model, in order of their names.

    They have the KV capacity of their own and the rules, `chunk_tokens` and `max_sequences` of
    `engine`. Empty for a profile from a file.
    """
    model = entry.name.partition("/")[0]
    rows = []
    for name in profile_names():
        if name == entry.name or name.partition("/")[0] != model:
            continue
        other = load_entry(name)
        other.profile.chunk_tokens = engine.profile.chunk_tokens
        other.profile.max_sequences = engine.profile.max_sequences
        values = _if_it_fits(run, replace(engine, profile=other.profile))
        rows.append(Prediction(name, other.estimate, other.source, values))
    return rows
