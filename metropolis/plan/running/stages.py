"""The stages of a run as they were, beside those that were planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from metropolis.plan.placement import Gpus, shown_gpus
from metropolis.plan.running.folder import ACTUAL, RunRecord
from metropolis.plan.running.model_copy import RunningNode
from metropolis.plan.schedule import Schedule, ScheduleStage, StageNode
from metropolis.plan.timeline import Boundary, Stage


@dataclass
class _Begun:
    """A stage that has begun: its nodes, those that were loaded, and those that have finished."""

    begins_s: float
    nodes: dict[str, RunningNode]
    boundary: Boundary | None
    loads: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    ends_s: float | None = None

    def stage(self, now_s: float) -> ScheduleStage:
        """The stage as far as it has come."""
        nodes = {
            name: StageNode(
                *node.plan,
                gpus=node.gpus,
                loads=name in self.loads,
                loaded_s=now_s if node.ready_s is None else node.ready_s,
                finishes=name in self.finished,
            )
            for name, node in self.nodes.items()
        }
        ends_s = now_s if self.ends_s is None else self.ends_s
        return ScheduleStage(self.begins_s, ends_s, nodes, self.boundary)


class StageLog:
    """Records stages in `record`; `log` receives a line for each. Time continues after a resume."""

    def __init__(self, record: RunRecord, log: Callable[[str], None]) -> None:
        self._record, self._log = record, log
        self._offset_s = record.elapsed_s - time.monotonic()
        self._past = record.actual.stages
        """The stages that earlier processes ran."""
        self._begun: list[_Begun] = []

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() + self._offset_s

    def update(self) -> None:
        """Record the time and the stages so far."""
        self._record.elapsed_s = now_s = self.now_s
        stages = (*self._past, *(begun.stage(now_s) for begun in self._begun))
        self._record.actual = Schedule(ACTUAL, stages)

    def note_time(self) -> None:
        """Record the time so far, but no change of the stages."""
        self._record.elapsed_s = self.now_s

    def finished(self, name: str) -> None:
        """A node of the current stage has finished."""
        self._begun[-1].finished.add(name)

    def begin(
        self,
        stage: Stage,
        gpus: Mapping[str, Gpus],
        running: Mapping[str, RunningNode],
        continuing: Collection[str],
        boundary: Boundary | None,
    ) -> None:
        """A stage begins; the former ends."""
        why = self._why()
        self.end()
        nodes = {name: running[name] for name in continuing}
        self._begun.append(_Begun(self.now_s, nodes, boundary))
        runs = [
            f"{name} {plan} on GPUs {shown_gpus(gpus[name])}"
            + ("" if name in continuing else " (loads)")
            for name, plan in stage.items()
        ]
        number = len(self._past) + len(self._begun)
        self._log(f"stage {number} at {self.now_s:.1f} s: {'; '.join([*why, *runs])}")

    def started(self, name: str, node: RunningNode) -> None:
        """A node is loaded in the current stage."""
        self._begun[-1].nodes[name] = node
        self._begun[-1].loads.add(name)

    def end(self) -> None:
        """The current stage ends, if there is one."""
        if self._begun and self._begun[-1].ends_s is None:
            self._begun[-1].ends_s = self.now_s
        self.update()

    def _why(self) -> list[str]:
        """The reasons why the current stage ends, as texts for the log."""
        if not self._begun:
            return []
        finished, boundary = sorted(self._begun[-1].finished), self._begun[-1].boundary
        if not finished and boundary is not None:
            return [f"{boundary.node} has {boundary.open_requests:,} requests left"]
        return [f"{name} has finished{self._planned(name)}" for name in finished]

    def _planned(self, name: str) -> str:
        ends_s = [
            stage.ends_s
            for stage in self._record.planned.stages
            if name in stage.nodes and stage.nodes[name].finishes
        ]
        return f" (planned: {ends_s[-1]:.1f} s)" if ends_s else ""
