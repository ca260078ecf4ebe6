"""`metropolis run`: run a world live until it ends or is stopped, and resume it."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import click

from metropolis.cli.ctrl_c import ended_by_ctrl_c
from metropolis.cli.live import FINISHED, continue_run, run_scenario
from metropolis.cli.run_folders import latest_folder, run_folder
from metropolis.cli.run_options import (
    DEFAULT_CONCURRENCY,
    STEPS_MAX,
    RunOptions,
    absolute_name,
    refuse_ineffective,
)
from metropolis.cli.run_report import print_estimate, write_json
from metropolis.cli.verification import VERIFY_OPTIONS, verification
from metropolis.command_options import (
    INSTANCE,
    MODEL,
    WORLD_OPTION,
    Integer,
    NamedChoice,
    Number,
    OutputFolder,
    on_command_line,
)
from metropolis.llm.client import PATIENCE_S
from metropolis.policy.named import REUSES, names_of
from metropolis.progress import progress_bar
from metropolis.runtime.live.configuration import (
    DEFAULTS,
    LEASE_S_MAX,
    LEASE_S_MIN,
    LIVE_MODES,
    LIVE_RULES,
    OPTION_HELP,
)
from metropolis.runtime.live.estimate import Estimate, estimate_run
from metropolis.sim.fleet import INSTANCES_MAX
from metropolis.store.factory import ADDRESS_FORMS
from metropolis.types import Step
from metropolis.world.checks import SEED_MAX
from metropolis.world.scenario import Scenario

LATEST = "the latest"
REHEARSAL_WALL_S = 120.0


_COUNT = Integer(1, 1_000_000_000)
_POSITIVE = Number(min=0, min_open=True, max=1e9)


@click.command(name="run")
@click.argument("world", required=False)
@WORLD_OPTION
@click.option("--agents", type=_COUNT, help="Number of agents. [default: the world's own]")
@click.option("--hours", type=_POSITIVE, help="Length in simulated hours.")
@click.option(
    "--steps", type=Integer(1, STEPS_MAX), help="Length in steps. [default: the world's own]"
)
@click.option(
    "--mode",
    type=NamedChoice(LIVE_MODES),
    default=DEFAULTS.mode,
    show_default=True,
    help=OPTION_HELP["mode"],
)
@click.option(
    "--rule",
    type=NamedChoice(LIVE_RULES),
    default=DEFAULTS.rule,
    show_default=True,
    help=OPTION_HELP["rule"],
)
@click.option(
    "--waste-budget", metavar="SHARE", type=Number(0, 1), help=OPTION_HELP["waste_budget"]
)
@click.option(
    "--llm",
    metavar="SPEC",
    default="scripted",
    show_default=True,
    help="The model: the URL of a server, sglang:URL, openai:URL or vllm:URL; replay:RUN or "
    "replay:JOURNAL for the answers of an earlier run; scripted for the world's offline author.",
)
@MODEL
@click.option(
    "--llm-seed/--no-llm-seed",
    default=True,
    show_default=True,
    help="Send sampling seeds with calls; some servers do not support them.",
)
@click.option(
    "--engine",
    metavar="URL",
    multiple=True,
    help="Instead of --llm: the URL of an engine, as in `metropolis gateway`, behind a gateway in "
    "this process. Repeat the option for more engines.",
)
@click.option(
    "--policy",
    help="The policy that orders the calls: a name, or FILE.py:CLASS. [default: step on simulated "
    "instances, kairos with --engine]",
)  # fmt: skip
@click.option(
    "--dispatcher",
    help="The dispatcher that chooses the instance of a call: a name, or FILE.py:CLASS. [default: "
    "least_used on simulated instances, prefix with --engine]",
)  # fmt: skip
@click.option(
    "--reuse",
    metavar="NAME",
    help="Which cache a prefill starts from on simulated instances: "
    f"{', '.join(names_of(REUSES))}, like droidspeak:plans=FILE, or FILE.py:CLASS. [default: none]",
)
@click.option(
    "--seed",
    type=Integer(0, SEED_MAX),
    default=DEFAULTS.seed,
    show_default=True,
    help=OPTION_HELP["seed"],
)
@click.option(
    "--out", type=OutputFolder(), help="A new folder for the run's files. [default: runs/WORLD-N]"
)
@click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value=LATEST,
    help="Continue RUN, or the latest run of WORLD under runs/, like `metropolis resume`.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Resume a run whose folder another user wrote, or which was changed. The code it names is "
    "executed, and the addresses it names receive your keys.",
)
@click.option("--estimate", is_flag=True, help="Estimate calls, tokens and time; do not run.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as a JSON object.")
@click.option("--quiet", is_flag=True, help="Print no story and no progress.")
@click.option(
    "--view",
    is_flag=True,
    help="Show the run in a local page, from which it can be paused and stopped. In a terminal the "
    "page stays after the run's end, until Ctrl-C; else it ends with the run.",
)
@click.option(
    "--profile",
    default="llama-3-8b/l4",
    show_default=True,
    help="Model and GPU of the simulated instances: a name or a TOML file.",
)
@click.option(
    "--instances",
    type=Integer(1, INSTANCES_MAX),
    default=1,
    show_default=True,
    help="Number of simulated instances.",
)
@INSTANCE
@click.option(
    "--concurrency",
    type=_COUNT,
    default=DEFAULT_CONCURRENCY,
    show_default=True,
    help="Maximum calls in flight.",
)
@click.option(
    "--timeout",
    type=_POSITIVE,
    default=300,
    show_default=True,
    help="Maximum seconds of one answer.",
)
@click.option(
    "--patience",
    type=Number(0, 1e9),
    default=PATIENCE_S,
    show_default=True,
    help="Maximum seconds to wait for a server that is unreachable during the run.",
)
@click.option("--requests-per-minute", type=_COUNT, help="Rate limit of the server.")
@click.option("--tokens-per-minute", type=_COUNT, help="Rate limit of the server.")
@click.option("--max-tokens", type=_COUNT, help="Stop before the run uses more tokens in total.")
@click.option("--max-cost", type=_POSITIVE, help="Stop before the run costs more in total.")
@click.option("--price-in", type=Number(0, 1e9), help="Price of a million prompt tokens.")
@click.option("--price-out", type=Number(0, 1e9), help="Price of a million output tokens.")
@click.option(
    "--checkpoint-minutes",
    type=Number(0, 1e6),
    default=DEFAULTS.checkpoint_wall_s / 60,
    show_default=True,
    help="Minutes between checkpoints.",
)
@click.option(
    "--store",
    metavar="STORE",
    default="memory",
    show_default=True,
    help=f"Where the run's state lives: {ADDRESS_FORMS}; the environment variable "
    "METROPOLIS_STORE has no effect here. Only memory has virtual time.",
)
@click.option(
    "--workers",
    metavar="N|ray|ray:N",
    default=f"{DEFAULTS.workers}",
    show_default=True,
    help="Workers of a run in a store, in this process or on Ray; ray: one per CPU.",
)
@click.option("--ray-address", help="Address of a Ray cluster. [default: start one locally]")
@click.option(
    "--lease",
    type=Number(LEASE_S_MIN, LEASE_S_MAX),
    default=DEFAULTS.lease_s,
    show_default=True,
    help=OPTION_HELP["lease_s"],
)
@click.option(
    "--stall",
    metavar="SECONDS",
    type=Number(0, 1e9),
    default=DEFAULTS.stall_s,
    show_default=True,
    help=OPTION_HELP["stall_s"],
)
@click.option("--metrics", metavar="PORT", type=Integer(1, 65535), help=OPTION_HELP["metrics_port"])
@VERIFY_OPTIONS
@click.option("--keep-text", is_flag=True, help=OPTION_HELP["keep_text"])
@click.option(
    "--timeline/--no-timeline",
    default=DEFAULTS.timeline,
    show_default=True,
    help=OPTION_HELP["timeline"],
)
def command(
    world: str | None,
    resume: str | None,
    trust: bool,
    out: Path | None,
    estimate: bool,
    as_json: bool,
    quiet: bool,
    view: bool,
    verify: bool,
    verify_steps: Step | None,
    **given: Any,
) -> int:
    """Run WORLD live: an installed world, or FILE.py with a function make.

    Without --llm the run is offline: the world's own author answers, and without --store simulated
    instances give the latency. A run survives Ctrl-C and kill -9: `metropolis resume` continues it
    with the history of an uninterrupted run. Exit status: 0 finished, 2 bad input or a failing
    model, 3 budget exhausted, 4 --verify found a difference, 130 interrupted.
    """
    if trust and resume is None:
        raise click.UsageError("--trust is for a run that --resume continues")
    if resume is not None:
        if out is not None or estimate:
            raise click.UsageError("a run is resumed in its folder; omit --out and --estimate")
        folder = latest_folder(world) if resume == LATEST else run_folder(resume)
        changed = on_command_line(given)
        if world is not None:
            changed |= {"world": absolute_name(world)}
        how = {"trust": trust, "as_json": as_json, "quiet": quiet, "view": view}
        return continue_run(folder, changed, (verify, verify_steps), **how)
    if world is None:
        raise click.UsageError("name a world to run, for example smallville")
    options = RunOptions(absolute_name(world), **given)
    refuse_ineffective(options, on_command_line(given))
    scenario = options.scenario()
    if estimate and options.reuse is not None:
        raise click.UsageError("--estimate does not simulate caches; omit --reuse")
    if not estimate:
        check = verification(options, verify, verify_steps)
        return run_scenario(
            options, scenario, out, check, resume=False, as_json=as_json, quiet=quiet, view=view
        )
    options.check_hosts()
    found = _rehearse(scenario, options.last_step(scenario), options, quiet=quiet)
    if as_json:
        write_json(found)
    else:
        print_estimate(found)
    return FINISHED


def _rehearse(scenario: Scenario, steps: Step, options: RunOptions, *, quiet: bool) -> Estimate:
    """Estimate from a rehearsal that ends after REHEARSAL_WALL_S or at Ctrl-C."""
    began, stop = time.monotonic(), Event()
    with (
        progress_bar(steps, "steps", quiet=quiet) as (advance, describe),
        ended_by_ctrl_c(stop.set),
    ):
        describe("rehearsing; Ctrl-C ends it")
        return estimate_run(
            scenario,
            steps,
            options.seed,
            options.fleet,
            options.prices,
            advance,
            lambda: stop.is_set() or time.monotonic() - began > REHEARSAL_WALL_S,
            options.models,
        )
