"""The summary at the end of `metropolis run`: a table, or a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from metropolis.addresses import without_secrets
from metropolis.cli.mode_comparison import Compared, compared
from metropolis.cli.run_options import DEFAULT_CONCURRENCY, RunOptions
from metropolis.cli.story import WIDTH
from metropolis.cli.terminal import printable, without_controls
from metropolis.llm.usage import Usage
from metropolis.names import counted
from metropolis.runtime.folder.run_directory import Origin, RunDirectory
from metropolis.runtime.live.estimate import Estimate
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.stored import MEMORY
from metropolis.runtime.reruns.verify import Verified
from metropolis.sim.cache_choice import ReuseCounts
from metropolis.tables import numbers_table, or_dash, plain_console, print_whole
from metropolis.types import Step
from metropolis.world.scenario import Scenario

COMPARED_ROWS = 250_000
"""Maximum agent-steps to compare: a day of 25 agents in steps of 10 s."""
COMPARED_CALLS = 25_000
"""Maximum calls to compare: more than SmallVille makes in its default length (some 19,000)."""


@dataclass(frozen=True)
class Function:
    """Usage of the calls of one function, over all steps so far."""

    calls: int
    prompt_tokens: int
    output_tokens: int
    cost: float | None


@dataclass(frozen=True)
class Bought:
    """All answers paid for, over all starts of the run, uncommitted steps included."""

    answers: int
    prompt_tokens: int
    output_tokens: int
    lost_tokens: int
    """Upper bound of the tokens of attempts in this start that got no answer."""
    cost: float | None
    """The cost of the answers and of the lost tokens; None: prices are not known."""


@dataclass(frozen=True)
class Summary:
    """The state of a run at its last step."""

    world: str
    agents: int
    steps: Step
    steps_wanted: Step
    begins: str
    """Simulated time of step 0."""
    span_s: float
    """Simulated seconds of the world that `steps` cover."""
    mode: str
    rule: str | None
    seed: int
    llm: str
    model: str | None
    models: Mapping[str, str]
    """Function or @agent -> its model."""
    stopped: str | None
    history_sha256: str
    verified: Verified | None
    """The result of `--verify`; None without it."""
    calls: int
    """Answered calls in the history; the next three fields are their tokens and cost."""
    prompt_tokens: int
    output_tokens: int
    cost: float | None
    bought: Bought
    usage: Mapping[str, Function]
    reused: int
    """Answers that had been paid for before, in an earlier start or by a step that is repeated."""
    retries: int
    simulated: bool
    """Whether the latency of calls, and so the makespan, is simulated."""
    makespan_s: float
    """Time since the run began: sim_s if simulated, otherwise wall_s."""
    makespan_note: str | None
    """What `makespan_s` leaves out, or includes beside the steps of the history; None: nothing."""
    wall_s: float
    """Wall time of this start."""
    reuse: Mapping[str, Any] | None
    """Name and counts of the plug-in that chose caches in this start; None: there was none."""
    fleet: str
    profile: str
    instances: int
    concurrency: int
    """Maximum calls in flight; `comparison` does not apply this limit."""
    comparison: Sequence[Compared]
    """Estimates of the modes, always simulated; empty for a run without calls."""
    no_comparison: str | None
    """Why a run with calls has no comparison, and how to get one."""
    compared_from: Step
    """The first step of `comparison`, which covers only the end of a long run."""
    lineage: Sequence[Origin]
    """The ancestors of a branch, from the oldest to the run that it branched from."""
    out: str
    paths: Mapping[str, str]


def summary_of(
    result: RunResult,
    scenario: Scenario,
    steps: Step,
    options: RunOptions,
    folder: Path,
    verified: Verified | None,
    reused: ReuseCounts | None,
    *,
    quiet: bool,
) -> Summary:
    """Summarise `result`, whose files are in `folder`; `reused` are the caches of this start."""
    first, trace = result.recorded.last(COMPARED_ROWS, COMPARED_CALLS)
    comparison, no_comparison = compared(
        trace, not first, scenario.world, options, folder, quiet=quiet
    )
    usage = _usage(result, options)
    return Summary(
        world=scenario.world.name,
        agents=result.agents,
        steps=result.steps,
        steps_wanted=steps,
        begins=scenario.world.start.isoformat(),
        span_s=result.steps * scenario.world.step_s,
        mode=result.mode,
        rule=result.rule,
        seed=result.seed,
        llm=without_secrets(options.llm),
        model=options.models.default,
        models=options.models.own,
        stopped=result.stopped,
        history_sha256=result.history_sha256,
        verified=verified,
        calls=result.calls,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        cost=_cost(options, result.prompt_tokens, result.output_tokens),
        bought=_bought(result.bought, options),
        usage=usage,
        reused=sum(of.reused for of in result.usage.values()),
        retries=sum(of.retries for of in result.usage.values()),
        simulated=result.simulated,
        makespan_s=result.makespan_s,
        makespan_note=_makespan_note(result, options, folder),
        wall_s=result.wall_s,
        reuse={"name": options.reuse, **reused.as_row()} if reused else None,
        fleet=f"{options.fleet}",
        profile=options.fleet.profile_names,
        instances=len(options.fleet),
        concurrency=options.concurrency,
        comparison=comparison,
        no_comparison=no_comparison,
        compared_from=first,
        lineage=_lineage(folder),
        out=str(folder),
        paths={path.stem: str(path) for path in sorted(folder.iterdir()) if path.is_file()},
    )


def _makespan_note(result: RunResult, options: RunOptions, folder: Path) -> str | None:
    parts, resumed = [], result.resumed
    is_plain = not resumed and result.mode != "optimistic"
    if is_plain and any(of.reused for of in result.usage.values()):
        parts.append("without the time of known answers")
    elif RunDirectory(folder).may_lack_answers(resumed=resumed):
        # The clock of a run in a store never stops.
        is_stored = resumed and options.store != MEMORY
        pauses = " and include that between its starts" if is_stored else ""
        parts.append(f"which may lack the time of known answers{pauses}")
    if result.stopped is not None:
        parts.append("including steps that are not in the history")
    return ", ".join(parts) or None


def _lineage(folder: Path) -> Sequence[Origin]:
    directory = RunDirectory(folder)
    directory.read()
    return directory.lineage


def _usage(result: RunResult, options: RunOptions) -> dict[str, Function]:
    usage = {}
    for function, totals in result.by_function.items():
        tokens = totals.prompt_tokens, totals.output_tokens
        usage[function] = Function(totals.calls, *tokens, _cost(options, *tokens))
    return usage


def _bought(usage: Usage, options: RunOptions) -> Bought:
    tokens = usage.prompt_tokens, usage.output_tokens
    cost = None if options.prices is None else usage.cost
    return Bought(usage.calls, *tokens, usage.lost_tokens, cost)


def _cost(options: RunOptions, prompt_tokens: int, output_tokens: int) -> float | None:
    prices = options.prices
    return None if prices is None else prices.cost(prompt_tokens, output_tokens)


def write_json(content: Summary | Estimate) -> None:
    """Print `content` as one JSON object, the last output."""
    click.echo(json.dumps(asdict(content), indent=2, ensure_ascii=False))


def print_summary(run: Summary) -> None:
    """Print the summary of a run as text."""
    console = _console()
    how = run.mode if run.rule is None else f"{run.mode} ({run.rule})"
    console.print(
        f"\n{run.world}: {counted(run.agents, 'agent')}, {counted(run.steps, 'step')} "
        f"({_hours(run.span_s)} of "
        f"simulated time), {how}, seed {run.seed}, in {run.wall_s:,.1f} s of real time."
    )
    known = "" if run.verified else " (not verified; run --verify checks it against lockstep)"
    console.print(f"history_sha256 {run.history_sha256}{known}\n")
    for origin in run.lineage:
        sentence = f"A branch of {origin.run} from step {origin.step:,} on, seed {origin.seed}"
        if origin.edit:
            sentence += f"; {origin.edit} has changed {', '.join(origin.edited) or 'nothing'}"
        console.print(without_controls(f"{sentence}.\n"))
    print_whole(_calls_table(run.usage, run.cost), console)
    if (purchases := _purchases_note(run)) is not None:
        console.print(purchases)
    note = f", {run.makespan_note}" if run.makespan_note else ""
    where = run.fleet.replace(" x ", " × ")
    if run.simulated:
        console.print(
            f"\nLLM latency is simulated: on {where} the run would have taken "
            f"{_seconds(run.makespan_s)} sim_s{note}."
        )
    else:
        console.print(f"\nThe run took {_seconds(run.makespan_s)} s of wall time{note}.")
    if run.reuse and run.reuse["prompt_tokens"]:
        console.print(reuse_note(run.reuse))
    if run.comparison:
        is_limited = run.concurrency < DEFAULT_CONCURRENCY
        limit = " with any number of calls in flight" if is_limited else ""
        console.print(f"\n{_comparison_heading(run)}, simulated on {where}{limit}:")
        print_whole(_comparison_table(run.comparison), console)
    if run.no_comparison:
        console.print(f"\n{run.no_comparison}")
    written = [
        f"{path.name}/" if path.is_dir() else path.name for path in sorted(Path(run.out).iterdir())
    ]
    console.print(f"\nWritten to {run.out}: {', '.join(written)}")
    if run.verified is not None:
        console.print(f"\n{run.verified}")


def reuse_note(reuse: Mapping[str, Any]) -> str:
    """Describe what prefills started from."""
    own, other = (reuse[name] / reuse["prompt_tokens"] for name in ("own_tokens", "reused_tokens"))
    return (
        f"Reuse {reuse['name']}: {own:.1%} of the prompt tokens were in an instance's own cache, "
        f"{other:.1%} came from other caches ({reuse['other_model_hits']:,} prefills from another "
        f"model's), {reuse['moved_bytes'] / 1e9:,.1f} GB were moved between instances."
    )


def _comparison_heading(run: Summary) -> str:
    modes = "every other mode" if run.mode == "optimistic" else "every mode"
    if not run.compared_from:
        return f"The same calls in {modes}"
    begin, end = (_hours(step * run.span_s / run.steps) for step in (run.compared_from, run.steps))
    return f"The same calls of the run's end, {begin} to {end}, in {modes}"


def _purchases_note(run: Summary) -> str | None:
    """Describe the purchases if they differ from the history; None otherwise."""
    bought, tokens = run.bought, (run.prompt_tokens, run.output_tokens)
    if (bought.prompt_tokens, bought.output_tokens) == tokens and not bought.lost_tokens:
        return None
    cost = "" if bought.cost is None else f", cost {bought.cost:,.4f}"
    lost = ""
    if bought.lost_tokens:
        lost = f"; {bought.lost_tokens:,} tokens, at most, without an answer"
    return (
        f"\nThis is the history. Bought in total: {bought.answers:,} answers, "
        f"{bought.prompt_tokens:,} prompt tokens, {bought.output_tokens:,} output tokens"
        f"{lost}{cost}."
    )


def print_estimate(found: Estimate) -> None:
    """Print an estimate as text, with its method."""
    console = _console()
    console.print(
        f"{found.world}: {counted(found.agents, 'agent')}, {counted(found.steps, 'step')} "
        f"({_hours(found.span_s)} of simulated time). Nothing was sent to a model."
    )
    is_whole = found.rehearsed_steps == found.steps
    part = "all steps" if is_whole else f"the first {counted(found.rehearsed_steps, 'step')}"
    rest = "" if is_whole else " The other steps are extrapolated."
    console.print(
        f"The offline author ran {part} in {found.rehearsal_wall_s:.1f} s.{rest} A real model's "
        "answers differ in length and in their consequences.\n"
    )
    table = numbers_table(
        "function", "calls", "prompt\ntokens", "output\ntokens", "output tokens\nat most"
    )
    if found.total.cost is not None:
        table.add_column("cost", justify="right")
        table.add_column("cost\nat most", justify="right")
    for name, of in [*found.functions.items(), ("all", found.total)]:
        counts = (of.calls, of.prompt_tokens, of.output_tokens, of.output_tokens_max)
        costs = [f"{cost:,.2f}" for cost in (of.cost, of.cost_max) if cost is not None]
        table.add_row(name, *(f"{count:,.0f}" for count in counts), *costs)
    print_whole(table, console)
    times = ", ".join(f"{mode} {_hours(s)}" for mode, s in found.makespan_sim_s.items())
    console.print(f"Simulated on {found.fleet.replace(' x ', ' × ')}: {times}.")


def _calls_table(usage: Mapping[str, Function], cost: float | None) -> Table:
    table = numbers_table(
        "function", "calls", "prompt\ntokens", "per\ncall", "output\ntokens", "per\ncall"
    )
    if cost is not None:
        table.add_column("cost", justify="right")
    everything = Function(
        sum(of.calls for of in usage.values()),
        sum(of.prompt_tokens for of in usage.values()),
        sum(of.output_tokens for of in usage.values()),
        cost,
    )
    for name, of in [*usage.items(), ("all", everything)]:
        calls = max(1, of.calls)
        table.add_row(
            printable(name),
            f"{of.calls:,}",
            f"{of.prompt_tokens:,}",
            f"{of.prompt_tokens / calls:.1f}",
            f"{of.output_tokens:,}",
            f"{of.output_tokens / calls:.1f}",
            *([] if of.cost is None else [f"{of.cost:,.4f}"]),
        )
    return table


def _comparison_table(rows: Sequence[Compared]) -> Table:
    table = numbers_table(
        "mode", "makespan\nsim_s", "times as fast\nas lockstep", "times as fast\nas sequential",
        "share of\noracle", "share of\noracle_values",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.mode,
            _seconds(row.makespan_sim_s),
            or_dash(row.speedup_over_lockstep, ".2f"),
            or_dash(row.speedup_over_sequential, ".2f"),
            or_dash(row.share_of_oracle, ".0%"),
            or_dash(row.share_of_oracle_values, ".0%"),
        )
    return table


def _console() -> Console:
    console = plain_console(highlight=False)
    console.width = max(console.width, WIDTH)
    return console


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.1f}"


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
