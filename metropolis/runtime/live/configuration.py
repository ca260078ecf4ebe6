"""The configuration of a live run: of `Simulation`, and of `metropolis run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from metropolis.names import check_name, count_in, cut
from metropolis.store.factory import check_installed
from metropolis.types import MetropolisError
from metropolis.workers.watchdog import STALL_S
from metropolis.world.checks import check_number, check_options, seed_of

LEASE_S_MIN, LEASE_S_MAX = 0.001, 1e6
WORKERS_MAX = 1_000_000
LiveMode = Literal["sequential", "lockstep", "out_of_order", "optimistic"]
LiveRule = Literal["versioned", "conservative"]
LIVE_MODES: tuple[LiveMode, ...] = get_args(LiveMode)
LIVE_RULES: tuple[LiveRule, ...] = get_args(LiveRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """The options of a run of a world. Raises MetropolisError on a wrong value."""

    mode: Annotated[
        LiveMode,
        "Execution mode: out_of_order, optimistic (agents also run ahead on predictions), lockstep "
        "(a barrier after every step), or sequential (also only one agent, and one call, at a "
        "time).",
    ] = "out_of_order"
    rule: Annotated[LiveRule, "Dependency rule of out_of_order."] = "versioned"
    waste_budget: Annotated[
        float | None,
        "Maximum share of calls that the mode optimistic may waste, from 0 to 1; by default 0.2, "
        "or 0 if calls have a price, a budget or a limit per minute, or go to a server on the "
        "internet.",
    ] = None
    seed: Annotated[int, "Seed of all randomness."] = 0
    options: Annotated[Mapping[str, Any] | None, "Passed to `World.reset`."] = None
    out: Annotated[
        str | PathLike[str] | None,
        "A new folder for the run's files; None: everything stays in memory.",
    ] = None
    resume: Annotated[
        bool,
        "Continue the run in `out`, or begin the branch that `metropolis.fork` created there, from "
        "its last checkpoint; answers already paid for are not bought again.",
    ] = False
    trust: Annotated[
        bool, "Use a store that the folder names even if this user has not signed it."
    ] = False
    checkpoint_wall_s: Annotated[float, "Seconds between checkpoints."] = 180.0
    store: Annotated[
        str | None,
        "Where the run is kept: `memory`, `embedded`, the URL of a Redis or Valkey, or "
        "`FILE.py:CLASS`; None: in memory, or the store of the resumed run.",
    ] = None
    workers: Annotated[
        int | str,
        "Workers of a run in a store: a number, in this process; or ray, or ray:NUMBER, on Ray.",
    ] = 1
    ray_address: Annotated[
        str | None, "Address of a Ray cluster; None: a new one on this machine."
    ] = None
    lease_s: Annotated[
        float, "For a run in a store: seconds of silence after which a process counts as dead."
    ] = 10.0
    keep_text: Annotated[bool, "Keep prompts and answers in the trace."] = False
    timeline: Annotated[
        bool, "Record in the folder when agent-steps and calls began and ended, for the viewer."
    ] = True
    metrics_port: Annotated[
        int | None, "Serve Prometheus metrics of the run at this port of 127.0.0.1."
    ] = None
    stall_s: Annotated[
        float,
        "Name an agent on standard error after this many seconds without progress or a call in "
        "flight; 0: never.",
    ] = STALL_S
    about: Annotated[
        Mapping[str, Any] | None, "Plain data, stored in `run.json` for resuming the run."
    ] = None

    def __post_init__(self) -> None:
        check_name("mode", self.mode, LIVE_MODES)
        check_name("rule", self.rule, LIVE_RULES)
        object.__setattr__(self, "seed", seed_of(self.seed))
        for name in ("resume", "trust", "keep_text", "timeline"):
            if not isinstance(value := getattr(self, name), bool):
                raise MetropolisError(f"{name} is {cut(value)}; it should be True or False")
        if self.waste_budget is not None:
            check_number("waste_budget", self.waste_budget)
            if self.waste_budget > 1:
                raise MetropolisError(
                    f"waste_budget is {cut(self.waste_budget)}; it should be at most 1"
                )
        self._check_places()
        port: Any = self.metrics_port
        if port is not None and (type(port) is not int or not 0 < port < 1 << 16):
            raise MetropolisError(
                f"metrics_port is {cut(port)}; it should be a number from 1 to 65535, or None"
            )
        for name in ("options", "about"):
            check_options(getattr(self, name), name)
        for name in ("checkpoint_wall_s", "stall_s"):
            check_number(name, getattr(self, name))
        check_number("lease_s", self.lease_s, LEASE_S_MIN)
        if self.lease_s > LEASE_S_MAX:
            raise MetropolisError(
                f"lease_s is {self.lease_s!r}; it should be at most {LEASE_S_MAX:g} seconds"
            )
        check_plain(self.about or {})
        self._check_workers()
        check_extras(self.store, self.workers)

    def _check_places(self) -> None:
        out: Any = self.out
        if out is not None and (not isinstance(out, str | PathLike) or out == ""):
            raise MetropolisError(f"out is {cut(out)}; it should be the path of a folder, or None")
        if self.resume and out is None:
            raise MetropolisError("resume needs out, the folder of the run to continue")
        store: Any = self.store
        if not isinstance(store, str | None):
            raise MetropolisError(
                f"store is {cut(store)}; it should be memory, embedded, a URL or "
                "FILE.py:CLASS, as text, or None"
            )

    def _check_workers(self) -> None:
        on_ray, count = parse_workers(self.workers)
        if self.mode == "optimistic" and not on_ray and count != 1:
            raise MetropolisError(
                f"workers is {self.workers!r}, but an optimistic run has one worker in this "
                "process: make it 1, let agents decide on Ray (ray or ray:NUMBER), or use "
                "the mode out_of_order"
            )
        address: Any = self.ray_address
        if address is not None and not (isinstance(address, str) and address.strip()):
            raise MetropolisError(
                f"ray_address is {cut(address)}; it should be HOST:PORT of a cluster's head, auto, "
                "or None"
            )
        if address is not None and not on_ray:
            raise MetropolisError(
                f"ray_address is {cut(address)}, but the workers are not on Ray; workers should be "
                "ray or ray:NUMBER"
            )

    @property
    def one_by_one(self) -> bool:
        """Whether only one agent proceeds at a time."""
        return self.mode == "sequential"


class ConfigurationFields(TypedDict, total=False):
    """The fields of RunConfiguration, for type checkers."""

    mode: LiveMode
    rule: LiveRule
    waste_budget: float | None
    seed: int
    options: Mapping[str, Any] | None
    out: str | PathLike[str] | None
    resume: bool
    trust: bool
    checkpoint_wall_s: float
    store: str | None
    workers: int | str
    ray_address: str | None
    lease_s: float
    keep_text: bool
    timeline: bool
    metrics_port: int | None
    stall_s: float
    about: Mapping[str, Any] | None


def configured(
    configuration: RunConfiguration | None, fields: ConfigurationFields
) -> RunConfiguration:
    """`configuration`, or the defaults, with other `fields`."""
    if not isinstance(configuration, RunConfiguration | None):
        raise MetropolisError(
            f"configuration is {cut(configuration)}; it should be a metropolis.RunConfiguration, "
            "or None"
        )
    return replace(configuration or DEFAULTS, **fields)


def check_extras(store: str | None, workers: int | str) -> None:
    """Raise MetropolisError if the store or the workers need an extra that is not installed."""
    check_installed(store or "memory")
    if parse_workers(workers)[0] and find_spec("ray") is None:
        raise MetropolisError("workers on Ray need ray: pip install 'metropolis[ray]'")


def parse_workers(workers: int | str) -> tuple[bool, int | None]:
    """Whether the workers are on Ray, and their number, if specified."""
    kind, colon, number = str(workers).partition(":")
    on_ray = kind == "ray"
    if not on_ray:
        number = str(workers)
    count = count_in(number, WORKERS_MAX)
    if count is None and not (on_ray and not colon):
        raise MetropolisError(
            f"workers is {cut(workers)}; it should be a number from 1 to {WORKERS_MAX:,}, ray, or "
            "ray:NUMBER"
        )
    return on_ray, count


def check_plain(about: Mapping[Any, Any]) -> None:
    """Raise MetropolisError unless run.json can keep `about`."""
    for key, value in about.items():
        if not isinstance(key, str):
            raise MetropolisError(f"about has the key {cut(key)}; its keys should be texts")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise MetropolisError(
                f"about[{key!r}] is {cut(value)}; it should be plain data, which run.json can "
                "keep: texts, finite numbers, booleans, None, lists and dictionaries"
            ) from None


OPTION_HELP: dict[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(RunConfiguration, include_extras=True).items()
}
"""Field of RunConfiguration -> its description."""
RunConfiguration.__doc__ = f"{RunConfiguration.__doc__}\n\nArgs:\n" + "".join(
    f"    {name}: {meaning}\n" for name, meaning in OPTION_HELP.items()
)
DEFAULTS = RunConfiguration()
