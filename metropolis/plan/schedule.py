"""A schedule: the stages of an application, as planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from metropolis.durable import write_atomically
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.placement import Gpus
from metropolis.plan.timeline import Boundary, Moment, Outlook, PlannedStage, Timeline
from metropolis.types import MetropolisError

FORMAT = "metropolis schedule"
VERSION = 1


class StageNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node in a stage."""

    dp: int
    tp: int
    gpus: Gpus
    """The GPUs of each copy."""
    loads: bool
    """Whether it is loaded at the beginning of the stage."""
    loaded_s: float
    """From when on it answers."""
    finishes: bool
    """Whether it finishes at the end of the stage."""

    @property
    def plan(self) -> ExecutionPlan:
        """Its execution plan."""
        return ExecutionPlan(self.dp, self.tp)


class ScheduleStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A period in which the same models run with the same plans; seconds since the start."""

    begins_s: float
    ends_s: float
    nodes: dict[str, StageNode]
    boundary: Boundary | None = None
    """When it ends if no node finishes before."""

    @property
    def planned(self) -> PlannedStage:
        """What is to run, and until when."""
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


def stage_of(outlook: Outlook, before: Moment, boundary: Boundary | None = None) -> ScheduleStage:
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
    write_atomically(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def read_schedule(path: Path, application: str) -> Schedule:
    """The schedule in a file. Raises MetropolisError on a damaged one, or one of another app."""
    repair = f"make it again with: metropolis plan show {application} --out {path}"
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise MetropolisError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise MetropolisError(f"{path} is no schedule: {error}; {repair}") from error
    if (content.format, content.version) != (FORMAT, VERSION):
        raise MetropolisError(f"{path} is no {FORMAT} of version {VERSION}; {repair}")
    if content.application != application:
        raise MetropolisError(
            f"{path} is a schedule of the application {content.application!r}; {repair}"
        )
    return content.schedule
