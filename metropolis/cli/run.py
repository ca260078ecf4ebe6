"""`metropolis run`: a world, live, to its end or until it is stopped; and on from there."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import click

from metropolis.cli.choices import NamedChoice
from metropolis.cli.live import FINISHED, ended_by_ctrl_c, go, go_on, on_command_line
from metropolis.cli.run_options import (
    RunOptions,
    latest_folder,
    refuse_unheeded,
    run_folder,
    whole_name,
)
from metropolis.cli.run_report import print_estimate, write_json
from metropolis.cli.verification import verification, verify_options
from metropolis.llm.client import PATIENCE_S
from metropolis.progress import progress_bar
from metropolis.runtime.estimate import Estimate, estimate_run
from metropolis.runtime.setup import LIVE_MODES, LIVE_RULES
from metropolis.runtime.simulation import LEASE_S
from metropolis.store.factory import FORMS
from metropolis.types import Step
from metropolis.workers.watchdog import STALL_S
from metropolis.world.scenario import Scenario

LATEST = "the latest"
REHEARSAL_WALL_S = 120.0


class Integer(click.IntRange):
    """An integer within a range, as errors call it."""

    name = "integer"


class Amount(click.FloatRange):
    """A number within a range; unlike click's, never `nan`."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Check."""
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}", param, ctx)
        return number


_COUNT = Integer(1, 1_000_000_000)
_POSITIVE = Amount(min=0, min_open=True, max=1e9)


@click.command(name="run")
@click.argument("world", required=False)
@click.option("--agents", type=_COUNT, help="How many. [default: the world's own number]")
@click.option("--hours", type=_POSITIVE, help="Length in simulated hours.")
@click.option("--steps", type=_COUNT, help="Length in steps. [default: the world's own]")
@click.option("--mode", type=NamedChoice(LIVE_MODES), default="out_of_order", show_default=True)
@click.option(
    "--rule",
    type=NamedChoice(LIVE_RULES),
    default="versioned",
    show_default=True,
    help="What out_of_order waits for.",
)
@click.option(
    "--llm",
    metavar="SPEC",
    default="scripted",
    show_default=True,
    help="The model: the URL of a server, sglang:URL, openai:URL, vllm:URL, replay:JOURNAL of a "
    "former run, or the world's own offline author.",
)
@click.option("--model", metavar="NAME", help="Which of the server's models.")
@click.option(
    "--llm-seed/--no-llm-seed",
    default=True,
    show_default=True,
    help="Whether calls carry sampling seeds, which some servers do not support.",
)
@click.option(
    "--engine",
    metavar="URL",
    multiple=True,
    help="In place of --llm: a server behind a gateway in this process, as metropolis gateway "
    "takes it; repeat it for more.",
)
@click.option(
    "--policy", default="kairos", show_default=True,
    help="The policy that orders the calls before the engines: a name, or FILE.py:CLASS.",
)  # fmt: skip
@click.option(
    "--dispatcher", default="prefix", show_default=True,
    help="The dispatcher that chooses the engine of a call: a name, or FILE.py:CLASS.",
)  # fmt: skip
@click.option("--seed", type=Integer(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder for the run's files. [default: runs/WORLD-N]",
)
@click.option(
    "--resume",
    metavar="[RUN]",
    is_flag=False,
    flag_value=LATEST,
    help="Go on with RUN, or with the latest of WORLD under runs/, as `metropolis resume` does.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Resume a run whose folder another user wrote, or that was changed. The code that it "
    "names is run, and the addresses that it names get your keys.",
)
@click.option("--estimate", is_flag=True, help="Say what the run would take, and do not run.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as a JSON object.")
@click.option("--quiet", is_flag=True, help="Tell no story and show no progress.")
@click.option(
    "--profile",
    default="llama-3-8b/l4",
    show_default=True,
    help="Model and GPU of the simulated instances: a name or a TOML file.",
)
@click.option(
    "--instances",
    type=Integer(1, 100_000),
    default=1,
    show_default=True,
    help="How many simulated instances.",
)
@click.option("--concurrency", type=_COUNT, default=1024, show_default=True, help="Calls at once.")
@click.option(
    "--timeout", type=_POSITIVE, default=300, show_default=True, help="Seconds for an answer."
)
@click.option(
    "--patience",
    type=Amount(0, 1e9),
    default=PATIENCE_S,
    show_default=True,
    help="Seconds to wait for a server that is away in mid-run.",
)
@click.option("--requests-per-minute", type=_COUNT, help="As the server's owner allows.")
@click.option("--tokens-per-minute", type=_COUNT, help="As the server's owner allows.")
@click.option("--max-tokens", type=_COUNT, help="Stop before the run has used more, in all.")
@click.option("--max-cost", type=_POSITIVE, help="Stop before the run has cost more, in all.")
@click.option("--price-in", type=Amount(0, 1e9), help="Of a million prompt tokens.")
@click.option("--price-out", type=Amount(0, 1e9), help="Of a million output tokens.")
@click.option(
    "--checkpoint-minutes",
    type=Amount(0, 1e6),
    default=3,
    show_default=True,
    help="How often to write down where everybody is.",
)
@click.option(
    "--store",
    metavar="STORE",
    default="memory",
    show_default=True,
    help=f"Where the run is kept: {FORMS}, whatever METROPOLIS_STORE says. Beyond memory nothing "
    "has virtual time.",
)
@click.option(
    "--workers",
    metavar="N|ray|ray:N",
    default="1",
    show_default=True,
    help="Of a run in a store: how many in this process, or on Ray; ray: one for every CPU.",
)
@click.option("--ray-address", help="Of a Ray cluster. [default: one of this machine's own]")
@click.option(
    "--lease",
    type=Amount(min=0.1, max=1e6),
    default=LEASE_S,
    show_default=True,
    help="Of a run in a store: after so many seconds of silence somebody counts as dead.",
)
@click.option(
    "--stall",
    metavar="SECONDS",
    type=Amount(0, 1e9),
    default=STALL_S,
    show_default=True,
    help="Name an agent on standard error after so many seconds without progress and without a "
    "call under way; 0: never.",
)
@verify_options
@click.option("--keep-text", is_flag=True, help="Keep prompts and answers in the trace.")
def command(
    world: str | None,
    resume: str | None,
    trust: bool,
    out: Path | None,
    estimate: bool,
    as_json: bool,
    quiet: bool,
    verify: bool,
    verify_steps: Step | None,
    **given: Any,
) -> int:
    """Run WORLD live: an installed world, or FILE.py with a function make.

    Without --llm everything is offline: the world's own author writes, and the latency of its
    answers is that of simulated instances. A run survives Ctrl-C and kill -9; `metropolis resume`
    goes on with a history equal to the uninterrupted one. Exit status: 0 finished, 2 bad input or
    a model that fails, 3 stopped by the budget, 4 not what --verify makes of it, 130 interrupted.
    """
    if resume is not None:
        if out is not None or estimate:
            raise click.UsageError("a run goes on in its folder; leave out --out and --estimate")
        folder = latest_folder(world) if resume == LATEST else run_folder(resume)
        changed = on_command_line(given) | ({} if world is None else {"world": whole_name(world)})
        how = {"trust": trust, "as_json": as_json, "quiet": quiet}
        return go_on(folder, changed, (verify, verify_steps), **how)
    if world is None:
        raise click.UsageError("say which world to run, smallville for instance")
    options = RunOptions(whole_name(world), **given)
    refuse_unheeded(options, on_command_line(given))
    scenario = options.scenario()
    if not estimate:
        check = verification(options, verify, verify_steps)
        return go(options, scenario, out, check, resume=False, as_json=as_json, quiet=quiet)
    found = _rehearse(scenario, options.last_step(scenario), options, quiet=quiet)
    (write_json if as_json else print_estimate)(found)
    return FINISHED


def _rehearse(scenario: Scenario, steps: Step, options: RunOptions, *, quiet: bool) -> Estimate:
    """An estimate from as much of a rehearsal as REHEARSAL_WALL_S and the user's patience allow."""
    began, stop = time.monotonic(), Event()
    with (
        progress_bar(steps, "steps", quiet=quiet) as (advance, describe),
        ended_by_ctrl_c(stop.set),
    ):
        describe("rehearsing; Ctrl-C: enough")
        return estimate_run(
            scenario,
            steps,
            options.seed,
            options.profile,
            options.instances,
            options.prices,
            advance,
            lambda: stop.is_set() or time.monotonic() - began > REHEARSAL_WALL_S,
        )
