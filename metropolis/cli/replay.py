"""`metropolis replay`: replay a trace on simulated LLM instances, in every mode."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import click

from metropolis.cli.replay_options import CommaSeparated, Speculation, distance
from metropolis.cli.replay_table import as_row, print_table
from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_view import check_viewer
from metropolis.cli.trace_parts import cut_agents, cut_hours
from metropolis.cli.view import show
from metropolis.command_options import (
    INSTANCE,
    MODEL,
    NamedChoice,
    OutputFolder,
    fleet_of,
    on_command_line,
)
from metropolis.llm.model_choice import ModelChoice
from metropolis.policy.named import REUSES, names_of
from metropolis.progress import progress_bar
from metropolis.rules.metrics import METRICS
from metropolis.runtime.replays.checks import check_models, check_moves
from metropolis.runtime.replays.modes import AUTO_RISK, MODES, OUT_OF_ORDER, Risk
from metropolis.runtime.replays.plots import prepare_figures, write_figures
from metropolis.runtime.replays.recorded_replay import prepare_folder, record_replays
from metropolis.runtime.replays.replay import (
    ReplayResult,
    Setting,
    cache_choice,
    mine_dependencies,
    plug_ins,
    replay,
    runs_in_core,
)
from metropolis.sim.engine_rules import ENGINE_RULES
from metropolis.sim.fleet import INSTANCES_MAX, SimulatedFleet
from metropolis.trace.mining import InteractionGraph
from metropolis.trace.parquet import IN_RUN, read_trace
from metropolis.trace.schema import Trace
from metropolis.viewer.data.opening import open_sides

COUNT_MAX = 1_000_000
EQUAL_ONLY = "no_dependency"
"""The mode that is a bound for equal instances only."""
Results: TypeAlias = list[tuple[Trace, list[ReplayResult]]]
"""The results of each window."""


@click.command(name="replay")
@click.argument("trace")
@click.option(
    "--modes",
    type=CommaSeparated(tuple(MODES), also=OUT_OF_ORDER),
    help="Execution modes and bounds, comma-separated; out_of_order is versioned. [default: "
    f"{','.join(MODES)}; without {EQUAL_ONLY} and optimistic on different instances, without "
    "optimistic under a dispatcher or a policy other than step and fcfs, without optimistic and "
    "bounds with --reuse, without oracle_values if the trace has no dependencies by value]",
)
@click.option(
    "--instances",
    type=CommaSeparated(most=INSTANCES_MAX),
    default="1",
    show_default=True,
    help="Numbers of data-parallel LLM instances.",
)
@click.option(
    "--agents",
    type=CommaSeparated(most=COUNT_MAX),
    help="Numbers of agents: the first N of the trace. [default: all]",
)
@click.option(
    "--hours",
    type=CommaSeparated(),
    default="all",
    show_default=True,
    help="Parts of the simulated day, like 6-7,12-13; each is replayed separately.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=["step"],
    show_default=True,
    help="Policy that orders waiting calls, like fcfs or step+kairos; may be repeated.",
)
@click.option(
    "--dispatcher", help="Dispatcher that places calls, like kairos. [default: least_used]"
)
@click.option(
    "--profile",
    default="llama-3-8b/l4",
    show_default=True,
    help="Model and GPU of an instance: a name or a TOML file.",
)
@INSTANCE
@click.option(
    "--engine-rules",
    type=NamedChoice(ENGINE_RULES),
    default="vllm",
    show_default=True,
    help="Engine whose scheduling rules the instances follow.",
)
@click.option(
    "--metric",
    type=NamedChoice(METRICS),
    help="How distance is measured; geodesic and genagent walk around the map's walls. "
    "[default: the trace's]",
)
@click.option("--radius", type=float, callback=distance, help="Override the perception radius.")
@click.option("--velocity", type=float, callback=distance, help="Override the maximum velocity.")
@click.option(
    "--speculation",
    type=Speculation(),
    metavar="off|auto|0..1",
    default="auto",
    help="Mode optimistic: an agent runs ahead if its chance of being wrong is at most this. auto: "
    f"{AUTO_RISK.most:g}, and less under load.",
    show_default=True,
)
@click.option("--prefix-reuse", is_flag=True, help="Let instances reuse KV of shared prefixes.")
@MODEL
@click.option(
    "--reuse",
    metavar="NAME",
    help="Which cache a prefill starts from: "
    f"{', '.join(names_of(REUSES))}, like droidspeak:plans=FILE, or FILE.py:CLASS. [default: none, "
    "or with --prefix-reuse an instance's own]",
)
@click.option(
    "--figures",
    type=OutputFolder(),
    help="Write the figures to this folder; needs metropolis[plot].",
)
@click.option(
    "--record",
    type=OutputFolder(),
    help="Write a timeline of each mode, except the bounds, to this new folder.",
)
@click.option("--view", is_flag=True, help="At the end, show two modes side by side.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def command(
    trace: str,
    modes: list[str] | None,
    instances: list[int],
    agents: list[int] | None,
    hours: list[str],
    policies: tuple[str, ...],
    dispatcher: str | None,
    profile: str,
    instance: tuple[str, ...],
    engine_rules: str,
    metric: str | None,
    radius: float | None,
    velocity: float | None,
    speculation: Risk | None,
    prefix_reuse: bool,
    model: tuple[str, ...],
    reuse: str | None,
    figures: Path | None,
    record: Path | None,
    view: bool,
    as_json: bool,
) -> None:
    """Replay TRACE, a file or a run's folder, on simulated LLM instances and compare modes.

    All times are simulated (sim_s) by the instance model of the profiles.
    """
    if view:
        check_viewer()
    choice, path = ModelChoice.parse(model), run_folder(trace)
    read = read_trace(path)
    whole = choice.applied_to(read) if model else read
    rules = ENGINE_RULES[engine_rules]
    fleets = [fleet_of(instance, profile, count).under(rules) for count in instances]
    setting = replace(
        _setting(whole, fleets[0], metric, radius, velocity),
        prefix_reuse=prefix_reuse,
        dispatcher=dispatcher,
        speculation=speculation,
        reuse=reuse,
    )
    if model and fleets[0].hosted is None:
        raise click.UsageError(
            "--model is for instances that host named models: --instance NAME=PROFILE"
        )
    if prefix_reuse and reuse is not None:
        raise click.UsageError("--reuse says what is reused; omit --prefix-reuse")
    if prefix_reuse and not whole.calls.prefix_tokens.any():
        raise click.UsageError(
            f"{path} lists no shared prefixes; for --prefix-reuse calls need prefix_id and "
            "prefix_tokens. With --reuse prefix the prompts of a run are compared, which "
            "`metropolis run --keep-text` keeps"
        )
    settings = _checked_settings(whole, setting, fleets, tuple(dict.fromkeys(policies)))
    windows = [
        (text, cut_agents(cut_hours(whole, text), count))
        for text in hours
        for count in agents or [whole.agents]
    ]
    given = None if modes is None else {OUT_OF_ORDER.get(name, name): name for name in modes}
    to_replay = _modes_to_replay(given, settings, windows)
    if "optimistic" not in to_replay and on_command_line({"speculation": speculation}):
        raise click.UsageError("--speculation is for the mode optimistic; omit it")
    check_moves(whole, setting.metric.name, setting.max_velocity, path)
    if figures is not None:
        prepare_figures(figures)
    if view and record is None:
        record = Path(click.get_current_context().with_resource(TemporaryDirectory()))
    if record is not None:
        _check_recordable(to_replay, len(windows) * len(settings))
        prepare_folder(record)
    results, graphs = _replay_all(windows, settings, to_replay)
    if record is not None:
        file = path / IN_RUN if path.is_dir() else path
        record_replays(record, *results[0], file if results[0][0] is read else None)
    if given is not None:
        results = [
            (window, [replace(result, mode=given[result.mode]) for result in of_window])
            for window, of_window in results
        ]
    _print(results, graphs, setting, as_json=as_json)
    if figures is not None:
        for written in write_figures(figures, whole, results):
            click.echo(f"wrote {written}", err=as_json)
    if view:
        assert record is not None
        show(open_sides(record))


def _setting(
    trace: Trace,
    fleet: SimulatedFleet,
    metric: str | None,
    radius: float | None,
    velocity: float | None,
) -> Setting:
    """The setting of the trace, with the options that override it."""
    meta = trace.meta if velocity is None else replace(trace.meta, max_velocity=velocity)
    if radius is not None:
        meta = replace(meta, perception_radius=radius, joint_radius=None)
    return Setting.of(meta, fleet, metric=metric)


def _checked_settings(
    trace: Trace, setting: Setting, fleets: Sequence[SimulatedFleet], policies: Sequence[str]
) -> list[Setting]:
    """`setting` for each fleet and policy. Raises MetropolisError on a wrong name."""
    settings = [
        replace(setting, fleet=fleet, policy=policy) for fleet, policy in product(fleets, policies)
    ]
    for each in settings:
        cache_choice(each)
        check_models(trace, each.fleet)
        plug_ins(each.policy, each.dispatcher, each.fleet.dispatcher_view())
    return settings


def _modes_to_replay(
    named: Collection[str] | None, settings: Sequence[Setting], windows: Sequence[tuple[str, Trace]]
) -> Sequence[str]:
    """The modes `named`; None: all that are possible in each of `settings` and `windows`."""
    can_speculate = all(map(runs_in_core, settings))
    if named is not None:
        if not can_speculate and any(MODES[name].is_optimistic for name in named):
            raise click.UsageError(
                "--modes: optimistic needs equal instances, the policy step or fcfs, no dispatcher "
                "and no --reuse"
            )
        return [*named]
    is_uniform = len(settings[0].fleet.kinds) == 1
    has_reuse = settings[0].reuse is not None
    has_values = all(window.dependencies is not None for _, window in windows)
    return [
        name
        for name, mode in MODES.items()
        if (is_uniform or name != EQUAL_ONLY)
        and not (has_reuse and mode.is_bound)
        and (can_speculate or not mode.is_optimistic)
        and (has_values or not mode.needs_values)
    ]


def _check_recordable(modes: Sequence[str], count: int) -> None:
    """Raise UsageError unless the modes include an execution, and the `count` of settings is 1."""
    if all(MODES[name].is_bound for name in modes):
        raise click.UsageError(
            "--record and --view show executions, and all of --modes are bounds; name another"
        )
    if count > 1:
        raise click.UsageError(
            "--record and --view are for one setting: give --instances, --agents, --hours and "
            "--policy one value each"
        )


def _replay_all(
    windows: Sequence[tuple[str, Trace]], settings: Sequence[Setting], modes: Sequence[str]
) -> tuple[Results, list[InteractionGraph]]:
    """Replay each window in each mode; returns the results and the interactions by window."""
    results: Results = []
    graphs: list[InteractionGraph] = []
    total = sum(window.steps * window.agents for _, window in windows) * len(settings) * len(modes)
    with progress_bar(total, "agent-steps") as (advance, describe):
        for hours, window in windows:
            graph = mine_dependencies(window, settings[0])
            of_window = []
            for setting, mode in product(settings, modes):
                describe(f"{mode}, {setting.fleet}")
                of_window.append(
                    replay(window, mode, replace(setting, hours=hours), graph, advance)
                )
            results.append((window, of_window))
            graphs.append(graph)
    return results, graphs


def _print(
    results: Results, graphs: Sequence[InteractionGraph], setting: Setting, *, as_json: bool
) -> None:
    if as_json:
        flat = [result for _, of_window in results for result in of_window]
        click.echo(json.dumps([as_row(setting, flat, result) for result in flat], indent=2))
        return
    for (window, of_window), graph in zip(results, graphs, strict=True):
        print_table(window, graph, setting, of_window)
