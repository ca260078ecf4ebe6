"""A run's own calls, replayed in every mode on simulated instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metropolis.cli.run_options import RunOptions
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.replays.replay import Setting, mine_dependencies, replay
from metropolis.trace.parquet import read_trace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from metropolis.world.base import World


@dataclass(frozen=True)
class Compared:
    """The results of one mode."""

    mode: str
    makespan_sim_s: float
    speedup_over_lockstep: float | None
    speedup_over_sequential: float | None
    share_of_oracle: float | None
    share_of_oracle_values: float | None


def compared(
    trace: Trace, is_whole: bool, world: World, options: RunOptions, folder: Path, *, quiet: bool
) -> tuple[Sequence[Compared], str | None]:
    """Replay the run in `folder` in every mode; `is_whole`: `trace` has all of its steps.

    If that fails, return the reason and a remedy: a failed comparison does not fail the run.
    """
    if not len(trace.calls):
        return [], None
    written = RunDirectory(folder).trace
    try:
        if is_whole and trace.dependencies is None and written.exists():
            trace = _with_dependencies(trace, written)  # those of a finished run
        return _compare(trace, world, options, quiet=quiet), None
    except MetropolisError as error:
        return [], (
            f"There is no comparison of the modes: {error}. `metropolis replay {written} --profile "
            "NAME` makes one on other instances."
        )


def _with_dependencies(trace: Trace, written: Path) -> Trace:
    found = read_trace(written)
    pairs = [(trace.positions, found.positions)]
    for name in ("step", "agent", "prompt_tokens", "output_tokens"):
        pairs.append((getattr(trace.calls, name), getattr(found.calls, name)))
    if not all(np.array_equal(*pair) for pair in pairs):
        raise MetropolisError(
            f"{written}: is not the trace of this run; remove it, and `metropolis resume` writes "
            "it again"
        )
    return replace(trace, dependencies=found.dependencies)


def _compare(trace: Trace, world: World, options: RunOptions, *, quiet: bool) -> Sequence[Compared]:
    meta = trace.meta  # with radii that a replay accepts
    setting = Setting(
        world.metric,
        meta.perception_radius,
        meta.max_velocity,
        options.fleet,
        joint_radius=meta.joint_radius,
        policy=(not options.engine and options.policy) or "step",
        dispatcher=None if options.engine else options.dispatcher,
        reuse=options.reuse,
    )
    if options.reuse is not None and trace.calls.prompt is None:
        raise MetropolisError("with --reuse it needs the prompts, which --keep-text keeps")
    graph = mine_dependencies(trace, setting)
    modes = ["sequential", "lockstep", options.rule, "oracle"]
    if trace.dependencies is not None:
        modes.append("oracle_values")
    makespans: dict[str, float] = {}  # all else in the results would stay in memory
    total = trace.steps * trace.agents * len(modes)
    with progress_bar(total, "agent-steps", quiet=quiet) as (advance, describe):
        for mode in modes:
            describe(f"comparing the modes: {mode}")
            found = replay(trace, mode, setting, graph, advance)
            makespans["out_of_order" if found.rule else mode] = found.makespan_sim_s

    def times(reference: str, makespan_sim_s: float) -> float | None:
        other_sim_s = makespans.get(reference)
        return other_sim_s / makespan_sim_s if other_sim_s is not None and makespan_sim_s else None

    return [
        Compared(
            mode,
            makespan_sim_s,
            times("lockstep", makespan_sim_s),
            times("sequential", makespan_sim_s),
            times("oracle", makespan_sim_s),
            times("oracle_values", makespan_sim_s),
        )
        for mode, makespan_sim_s in makespans.items()
    ]
