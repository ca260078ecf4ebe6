"""The options of `metropolis run`, kept in run.json to resume the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

import click
import msgspec

from metropolis.addresses import HIDDEN, without_secrets
from metropolis.cli import cli
from metropolis.cli.run_folders import with_journal
from metropolis.cli.trust import check_trust
from metropolis.dispatch.base import Fleet
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend
from metropolis.llm.client import Client
from metropolis.llm.connect import connect
from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.usage import Prices
from metropolis.policy.named import DISPATCHERS, POLICIES, REUSES, named
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.configuration import (
    LiveMode,
    LiveRule,
    RunConfiguration,
    parse_workers,
)
from metropolis.runtime.live.stored import MEMORY, portable_address, resolve_address
from metropolis.runtime.live.worker_pool import check_workers
from metropolis.runtime.replays.replay import plug_ins
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.types import MetropolisError, Step
from metropolis.world.scenario import Scenario, files_sha256, is_folder_of_world, make_scenario
from metropolis.world.scenario_options import parse_options
from metropolis.world.user_code import file_of, names_file

WORLD_FILES = "world_sha256"
"""Key in run.json, beside the options, of the world's `files_sha256`."""
STEPS_MAX = 1_000_000_000
"""Longest run; steps are numbers of 32 bits."""
DEFAULT_CONCURRENCY = 1024
"""The default of the maximum number of calls in flight."""
FIXED_OPTIONS = ("world", "world_option", "agents", "seed")
"""Options that a resumed run cannot change: its history depends on them."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `metropolis run`, by their names on the command line."""

    world: str
    world_option: tuple[str, ...]
    agents: int | None
    hours: float | None
    steps: int | None
    mode: LiveMode
    rule: LiveRule
    seed: int
    llm: str
    model: tuple[str, ...]
    llm_seed: bool
    engine: tuple[str, ...]
    policy: str | None
    dispatcher: str | None
    reuse: str | None
    profile: str
    instances: int
    instance: tuple[str, ...]
    concurrency: int
    timeout: float
    patience: float
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_tokens: int | None
    max_cost: float | None
    price_in: float | None
    price_out: float | None
    checkpoint_minutes: float
    store: str
    workers: str
    ray_address: str | None
    lease: float
    stall: float
    keep_text: bool
    timeline: bool
    metrics: int | None
    waste_budget: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "llm", with_journal(self.llm))
        if self.hours is not None and self.steps is not None:
            raise MetropolisError("give either --hours or --steps, not both")
        if self.engine and (self.llm != "scripted" or self.store != MEMORY):
            raise MetropolisError(
                "--engine runs a gateway in this process: omit --llm and --store, or start "
                "`metropolis gateway` and give its URL to --llm"
            )
        if (self.price_in is None) != (self.price_out is None):
            raise MetropolisError("give both --price-in and --price-out, or neither")
        if self.max_cost is not None and self.prices is None:
            raise MetropolisError(
                "--max-cost needs --price-in and --price-out, the prices of a million tokens"
            )
        _ = self.fleet, self.models  # fail fast: the mode comparison at the end needs the fleet
        check_workers(self.workers, store=self.store)

    def about(self, folder: Path) -> dict[str, Any]:
        """What run.json in `folder` says about the run."""
        return self.kept(folder) | {WORLD_FILES: files_sha256(self.world)}

    def kept(self, folder: Path) -> dict[str, Any]:
        """Return the options as run.json in `folder` keeps them: without passwords.

        Paths are absolute, except that of a store within `folder`, which is relative to it.
        """
        engines = tuple(map(without_secrets, self.engine))
        llm, store = without_secrets(self.llm), portable_address(self.store, folder)
        plugins = {
            name: _absolute_plug_in(plugin)
            for name in ("policy", "dispatcher", "reuse")
            if (plugin := getattr(self, name)) is not None
        }
        return asdict(self) | {"llm": llm, "engine": engines, "store": store} | plugins

    @property
    def models(self) -> ModelChoice:
        """The model of each call. Raises MetropolisError if --model has a wrong form."""
        return ModelChoice.parse(self.model)

    @property
    def fleet(self) -> SimulatedFleet:
        """The simulated instances. Raises MetropolisError if a profile does not exist."""
        if self.instance:
            return SimulatedFleet.parse(self.instance)
        return SimulatedFleet.uniform(self.profile, self.instances)

    def check_hosts(self) -> None:
        """Raise MetropolisError if a simulated instance hosts no model of a call."""
        self.fleet.check_hosts([self.models.default or "", *self.models.named])

    @property
    def schedules(self) -> bool:
        """Whether this process orders and places the calls."""
        is_simulated = self.store == MEMORY and self.llm.partition(":")[0] in ("scripted", "replay")
        return bool(self.engine) or is_simulated

    @property
    def prices(self) -> Prices | None:
        """The prices of tokens; None if not given."""
        if self.price_in is None or self.price_out is None:
            return None
        return Prices(self.price_in, self.price_out)

    def scenario(self) -> Scenario:
        """Make the world to run.

        Raises MetropolisError if it does not exist, or lacks an option, or an agent or a function
        of --model.
        """
        options = parse_options(self.world_option)
        scenario = make_scenario(self.world, agents=self.agents, seed=self.seed, options=options)
        self.models.check_agents([agent.name for agent in scenario.agents])
        if scenario.functions:
            self.models.check_functions(scenario.functions)
        return scenario

    def last_step(self, scenario: Scenario) -> Step:
        """Return the number of steps the run has at its end. Raises MetropolisError above 10^9."""
        if self.hours is not None:
            step_s = scenario.world.step_s
            steps = ceil(self.hours * 3600 / step_s - 1e-9)
            if steps > STEPS_MAX:
                raise MetropolisError(
                    f"--hours is {self.hours:g}, which are {steps:,} steps of {step_s:g} s; a run "
                    f"has at most {STEPS_MAX:,}"
                )
            return steps
        return scenario.steps if self.steps is None else self.steps

    def connected(self, scenario: Scenario) -> Backend:
        """The backend that --llm names, without the latency of simulated instances."""
        return connect(
            self.llm,
            self.models.default,
            author=scenario.world.author,
            named=self.models.named,
            sends_seed=self.llm_seed,
        )

    def backend(self, scenario: Scenario, log: Callable[[str], None] | None = None) -> Backend:
        """Make the backend; offline ones get the latency of simulated instances.

        Runs in a store have no virtual time, which is local to a process. `log` receives news of
        engines; None: the backend will only be checked.
        """
        if self.engine:
            # Imported here: its metrics take 40 ms to import, and few runs have a gateway.
            from metropolis.gateway.backend import LocalGateway
            from metropolis.gateway.engine_client import CAPACITY_TOKENS, TOKENS_PER_S

            engines = Fleet.uniform(len(self.engine), CAPACITY_TOKENS, TOKENS_PER_S)
            name = "prefix" if self.dispatcher is None else self.dispatcher
            dispatcher = named(DISPATCHERS, name)(engines)
            policy = named(POLICIES, "kairos" if self.policy is None else self.policy)()
            return LocalGateway(
                self.engine,
                policy,
                dispatcher,
                self.models.default,
                named=self.models.named,
                sends_seed=self.llm_seed,
                log=log or (lambda _: None),
                detects_traits=log is not None,
            )
        backend = self.connected(scenario)
        if self.store != MEMORY or not isinstance(backend, Scripted | Replay):
            return backend
        if self.requests_per_minute is not None or self.tokens_per_minute is not None:
            raise MetropolisError(
                "limits per minute are for servers, and this run uses none; give --llm URL"
            )
        self.check_hosts()
        fleet, choice = self.fleet, None
        if self.reuse is not None:
            choice = CacheChoice(named(REUSES, self.reuse)(), fleet)
            fleet = choice.fleet
        if self.policy is None and self.dispatcher is None:
            return VirtualInstances(backend, fleet, choice=choice)
        name = "step" if self.policy is None else self.policy
        policy, dispatcher = plug_ins(name, self.dispatcher, fleet.dispatcher_view())
        return VirtualInstances(backend, fleet, policy=policy, dispatcher=dispatcher, choice=choice)

    def configuration(self, folder: Path, *, resume: bool, trust: bool) -> RunConfiguration:
        """Return the configuration of a run in `folder`."""
        return RunConfiguration(
            mode=self.mode,
            rule=self.rule,
            seed=self.seed,
            out=folder,
            resume=resume,
            trust=trust,
            checkpoint_wall_s=self.checkpoint_minutes * 60,
            store=self.store,
            workers=self.workers,
            ray_address=self.ray_address if parse_workers(self.workers)[0] else None,
            lease_s=self.lease,
            keep_text=self.keep_text,
            timeline=self.timeline,
            metrics_port=self.metrics,
            waste_budget=self.waste_budget,
            stall_s=self.stall,
            about=self.about(folder),
        )

    def client(self, backend: Backend) -> Client:
        """Make a client of `backend` with the limits of these options."""
        simulated = isinstance(backend, VirtualInstances)
        return Client(
            backend,
            concurrency=self.concurrency,
            timeout_s=inf if simulated else self.timeout,  # virtual time has no timeouts
            patience_s=self.patience,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_tokens=self.max_tokens,
            max_cost=self.max_cost,
            prices=self.prices,
            models=self.models,
            seed=self.seed,
        )


def options_of(folder: Path, changed: Mapping[str, Any], *, trust: bool) -> RunOptions:
    """Return the options of the run in `folder`, updated by those `changed` on the command line.

    Raises MetropolisError if there is no such run, if its history would change, or if another user
    wrote the folder and `trust` is not set.
    """
    directory = RunDirectory(folder)
    kept = directory.read()["about"]
    files = kept.pop(WORLD_FILES, None)
    check_trust(directory, kept, changed, trust=trust)
    known = {field.name for field in fields(RunOptions)}
    if set(kept) != known:
        raise MetropolisError(
            f"{folder}: was not started by `metropolis run` of this release; use it in Python: "
            "Simulation(…, resume=True) continues it, metropolis.fork begins a branch, and "
            "metropolis.runtime.reruns.state_at shows a step; `metropolis diff --json` compares it"
        )
    for name in FIXED_OPTIONS:
        if name not in changed:
            continue
        was, now = _shown(kept[name]), _shown(changed[name])
        if now != was:
            raise MetropolisError(
                f"{folder}: its {name.replace('_', '-')} is {was}, and {now} would be another run; "
                "start that with `metropolis run`"
            )
    if {"hours", "steps"} & set(changed):
        kept |= {"hours": None, "steps": None}
    if {"profile", "instances"} & set(changed):
        kept |= {"instance": ()}
    if changed.get("store") == MEMORY:
        kept["workers"] = "1"  # more workers need a store
    try:
        options = msgspec.convert(kept | dict(changed), RunOptions)
        _check_ranges(kept)
    except (ValueError, click.BadParameter) as error:
        raise MetropolisError(f"{folder / 'run.json'}: about: {error}") from None
    for name in ("llm", "store"):
        if name not in changed and HIDDEN in kept[name]:
            raise MetropolisError(
                f"{folder}: the secret in its --{name} {kept[name]} was not stored; "
                f"give --{name} again"
            )
    world = file_of(options.world) if names_file(options.world) else Path(options.world)
    if world.is_absolute() and not world.exists():
        raise MetropolisError(
            f"{folder}: its world {world} does not exist; put it back there, or a link to it"
        )
    refuse_ineffective(options, changed)
    if files_sha256(options.world) != files:
        click.echo(
            f"metropolis: the world {options.world} has changed since the run in {folder} began; "
            "steps that are computed from now on follow the new one",
            err=True,
        )
    if "store" in changed:
        return options
    return replace(options, store=resolve_address(options.store, folder))


def _shown(value: Any) -> str:
    """The value of an option that may be given several times, or once."""
    if isinstance(value, list | tuple):
        return ", ".join(value) or "not given"
    return "not given" if value is None else str(value)


def _check_ranges(kept: Mapping[str, Any]) -> None:
    """Raise click.BadParameter if `metropolis run` would refuse the `kept` options."""
    run = cli.imported("run")
    context = click.Context(run)
    for option in run.params:
        if (value := kept.get(option.name or "")) is not None:
            option.type_cast_value(context, value)


def refuse_ineffective(options: RunOptions, given: Container[str]) -> None:
    """Raise MetropolisError if one of the options `given` by the user would have no effect."""
    for name in ("profile", "instances"):
        if name in given and options.instance:
            raise MetropolisError(f"--instance lists the whole fleet; omit --{name}")
    if "lease" in given and options.store == MEMORY:
        raise MetropolisError("--lease is for runs in a store; omit it, or add --store")
    if "waste_budget" in given and options.mode != "optimistic":
        raise MetropolisError("--waste-budget is for the mode optimistic; omit it")
    if "ray_address" in given and not parse_workers(options.workers)[0]:
        raise MetropolisError("--ray-address is for workers on Ray; omit it, or add --workers ray")
    if "rule" in given and options.mode != "out_of_order":
        raise MetropolisError("--rule is for the mode out_of_order; omit it")
    if "reuse" in given and (options.engine or not options.schedules):
        raise MetropolisError(
            "--reuse is for simulated instances: omit --llm, --engine and --store, or give it to "
            "`metropolis gateway`"
        )
    for name, group in (("policy", POLICIES), ("dispatcher", DISPATCHERS)):
        if name in given and not options.schedules:
            named(group, getattr(options, name))  # report a wrong name first
            raise MetropolisError(
                f"--{name} is for simulated instances and for a gateway in this process: omit "
                "--llm and --store, or name the gateway's engines with --engine"
            )


def absolute_name(world: str) -> str:
    """Make `world` absolute if it is a path: a run may be resumed from another directory."""
    if ".py" not in world and "/" not in world and not is_folder_of_world(world):
        return world
    path, mark, function = world.rpartition(".py") if ".py" in world else (world, "", "")
    return f"{Path(path).resolve()}{mark}{function}"


def _absolute_plug_in(name: str) -> str:
    """Make paths absolute: of plug-ins in Python files, and of plans in their options."""
    parts = (absolute_name(part) if ".py" in part else part for part in name.split("+"))
    return re.sub(
        r"(?<=[:,]plans=)[^,]+", lambda path: f"{Path(path[0]).resolve()}", "+".join(parts)
    )
