"""A schedule: the stages of an application, as planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from metropolis.durable import write_atomically
from metropolis.plan.machine import GPUS_MAX, ExecutionPlan
from metropolis.plan.placement import Gpus
from metropolis.plan.timeline import Boundary, Moment, Outlook, PlannedStage, Timeline
from metropolis.types import MetropolisError

FORMAT = "metropolis schedule"
VERSION = 1
IN_RUN = "run.json"
"""The file with the planned and the actual stages in the folder of a run."""
SECONDS_MAX = 1e9
STAGES_MAX = 10_000


class StageNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node in a stage."""

    dp: int
    tp: int
    gpus: Gpus
    """The GPUs of each copy."""
    loads: bool
    """Whether the model is loaded at the beginning of the stage."""
    loaded_s: float
    """Time at which the model can answer, in seconds since the start of the application."""
    finishes: bool
    """Whether the node finishes at the end of the stage."""

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan of the model."""
        return ExecutionPlan(self.dp, self.tp)


class ScheduleStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A period in which the same models run with the same plans; seconds since the start."""

    begins_s: float
    ends_s: float
    nodes: dict[str, StageNode]
    boundary: Boundary | None = None
    """The condition that ends the stage if no node finishes before."""

    @property
    def planned(self) -> PlannedStage:
        """The plans and the boundary, without times and placement."""
        return PlannedStage({name: each.plan for name, each in self.nodes.items()}, self.boundary)


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stages of an application in order. Times are estimates."""

    method: str
    stages: tuple[ScheduleStage, ...]

    @property
    def ends_s(self) -> float:
        """The estimated duration of the application, without the search."""
        return self.stages[-1].ends_s if self.stages else 0.0

    @property
    def planned(self) -> tuple[PlannedStage, ...]:
        """What is to run, for each stage."""
        return tuple(each.planned for each in self.stages)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    application: str
    schedule: Schedule


class _AnyFile(msgspec.Struct):
    """A schedule file, or that of a run; other fields are ignored."""

    application: str
    schedule: Schedule | None = None
    planned: Schedule | None = None
    actual: Schedule | None = None


def stage_of(outlook: Outlook, before: Moment, boundary: Boundary | None) -> ScheduleStage:
    """The stage that an outlook describes; `before`: the moment without it."""
    nodes = {}
    for name, prediction in outlook.predictions.items():
        started = prediction.started
        nodes[name] = StageNode(
            *started.plan,
            gpus=started.gpus,
            loads=before.running.get(name) is not started,
            loaded_s=started.loaded_s,
            finishes=prediction.finished_s <= outlook.ends_s,
        )
    return ScheduleStage(outlook.moment.time_s, outlook.ends_s, nodes, boundary)


def simulated(timeline: Timeline, method: str, stages: Sequence[PlannedStage]) -> Schedule:
    """The schedule of a sequence of stages.

    Raises MetropolisError if a stage does not fit, finishes no node, or nodes are left over.
    """
    moment, passed = timeline.start(), list[ScheduleStage]()
    for number, (plans, boundary) in enumerate(stages, 1):
        outlook = timeline.outlook(moment, plans, boundary)
        if outlook is None or outlook.ends_s == float("inf"):
            raise MetropolisError(f"stage {number} does not fit on the GPUs or never ends")
        passed.append(stage_of(outlook, moment, boundary))
        moment = timeline.after(outlook)
    if moment.unfinished:
        raise MetropolisError(f"the stages leave {', '.join(sorted(moment.unfinished))} unfinished")
    return Schedule(method, tuple(passed))


def write_schedule(path: Path, application: str, schedule: Schedule) -> None:
    """Write a schedule as JSON."""
    content = _File(FORMAT, VERSION, application, schedule)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n", 0o666)


def read_schedule(path: Path, application: str) -> Schedule:
    """The schedule in a file. Raises MetropolisError on a damaged one, or one of another app."""
    repair = f"make it again with: metropolis plan show APP --out {path}"
    content = _decoded(path, _File, repair)
    if (content.format, content.version) != (FORMAT, VERSION):
        raise MetropolisError(f"{path} is not a {FORMAT} of version {VERSION}; {repair}")
    if content.application != application:
        raise MetropolisError(
            f"{path} is a schedule of the application {content.application!r}; {repair}"
        )
    return content.schedule


def read_schedules(path: Path) -> tuple[str, dict[str, Schedule]]:
    """The application and the schedules, by title, in a schedule file or the folder of a run.

    Raises MetropolisError on a damaged file, or one without schedules.
    """
    if path.is_dir():
        path /= IN_RUN
    hint = "name an application (.toml), a schedule or the folder of a run"
    content = _decoded(path, _AnyFile, hint)
    found = {
        title: schedule
        for title, schedule in (
            (content.schedule and f"{content.schedule.method}, estimate", content.schedule),
            ("planned, estimate", content.planned),
            ("actual", content.actual),
        )
        if title and schedule is not None
    }
    if not found:
        raise MetropolisError(f"{path} has no schedule; {hint}")
    return content.application, found


_Content = TypeVar("_Content", bound=msgspec.Struct)


def _decoded(path: Path, kind: type[_Content], hint: str) -> _Content:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise MetropolisError(f"{path} cannot be read: {error.strerror}; {hint}") from error
    except (ValueError, RecursionError) as error:
        raise MetropolisError(f"{path} is not a schedule: {error}; {hint}") from error
    for schedule in msgspec.structs.astuple(content):
        if isinstance(schedule, Schedule):
            _check(path, schedule)
    return content


def _check(path: Path, schedule: Schedule) -> None:
    if len(schedule.stages) > STAGES_MAX:
        raise MetropolisError(
            f"{path} has {len(schedule.stages):,} stages; a schedule has at most {STAGES_MAX:,}"
        )
    begins_s = 0.0
    for number, stage in enumerate(schedule.stages, 1):
        _check_stage(f"{path}: stage {number}", stage, begins_s)
        begins_s = stage.ends_s


def _check_stage(where: str, stage: ScheduleStage, begins_s: float) -> None:
    """`begins_s`: the earliest time at which it may begin."""
    if not begins_s <= stage.begins_s <= stage.ends_s <= SECONDS_MAX:
        raise MetropolisError(
            f"{where} lasts from {stage.begins_s} to {stage.ends_s} s; it should begin at "
            f"{begins_s} s or later, after the stage before it, and end after its beginning, at "
            f"{SECONDS_MAX:.0e} s at the latest"
        )
    if stage.boundary is not None and stage.boundary.open_requests < 0:
        raise MetropolisError(
            f"{where} ends at {stage.boundary.open_requests} open requests; there are 0 or more"
        )
    used = set[int]()
    for name, node in stage.nodes.items():
        if not name.isidentifier():
            raise MetropolisError(f"{where}: {name!r} is not the name of a node")
        sizes = [len(copy) for copy in node.gpus]
        if min(node.plan) < 1 or len(sizes) != node.dp or {*sizes} != {node.tp}:
            raise MetropolisError(
                f"{where}: {name!r} has the plan {node.plan}; its dp and tp should be at least 1, "
                "and its gpus dp lists of tp GPUs"
            )
        if not 0 <= node.loaded_s <= SECONDS_MAX:
            raise MetropolisError(
                f"{where}: {name!r} is loaded at {node.loaded_s} s, which is not in "
                f"[0, {SECONDS_MAX:.0e}]"
            )
        for gpu in (gpu for copy in node.gpus for gpu in copy):
            if not 0 <= gpu < GPUS_MAX:
                raise MetropolisError(
                    f"{where}: {name!r} has the GPU {gpu}, which is not in [0, {GPUS_MAX - 1}]"
                )
            if gpu in used:
                raise MetropolisError(f"{where}: the GPU {gpu} of {name!r} is used twice")
            used.add(gpu)
