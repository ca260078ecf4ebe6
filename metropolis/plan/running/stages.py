"""The stages of a run as they were, beside those that were planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from metropolis.plan.placement import Gpus, shown_gpus
from metropolis.plan.running.folder import ACTUAL, RunRecord
from metropolis.plan.running.model_copy import RunningNode
from metropolis.plan.schedule import Schedule, ScheduleStage, StageNode
from metropolis.plan.timeline import Stage


@dataclass
class _Begun:
    """A stage that has begun: its nodes, those that were loaded, and those that have finished."""

    begins_s: float
    nodes: dict[str, RunningNode]
    loads: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)

    def until(self, now_s: float) -> ScheduleStage:
        """The stage, if it ends now."""
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
        return ScheduleStage(self.begins_s, now_s, nodes)


class StageLog:
    """Records stages in `record`; `log` receives a line for each. Time continues after a resume."""

    def __init__(self, record: RunRecord, log: Callable[[str], None]) -> None:
        self._record, self._log = record, log
        self._offset_s = record.elapsed_s - time.monotonic()
        self._current: _Begun | None = None
        self._past = record.actual.stages

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() + self._offset_s

    def update(self) -> None:
        """Record the time, and the current stage as far as it has come."""
        self._record.elapsed_s = self.now_s
        current = () if self._current is None else (self._current.until(self.now_s),)
        self._record.actual = Schedule(ACTUAL, (*self._past, *current))

    def finished(self, name: str) -> None:
        """A node of the current stage has finished."""
        assert self._current is not None
        self._current.finished.add(name)

    def begin(
        self,
        stage: Stage,
        gpus: Mapping[str, Gpus],
        running: Mapping[str, RunningNode],
        continuing: Collection[str],
    ) -> None:
        """A stage begins; the former ends."""
        finished = sorted(self._current.finished) if self._current else ()
        self.end()
        why = [f"{name} has finished{self._planned(name)}" for name in finished]
        self._current = _Begun(self.now_s, {name: running[name] for name in continuing})
        runs = [
            f"{name} {plan} on GPUs {shown_gpus(gpus[name])}"
            + " (loads)" * (name not in continuing)
            for name, plan in stage.items()
        ]
        self._log(f"stage {len(self._past) + 1} at {self.now_s:.1f} s: {'; '.join([*why, *runs])}")

    def started(self, name: str, node: RunningNode) -> None:
        """A node is loaded in the current stage."""
        assert self._current is not None
        self._current.nodes[name] = node
        self._current.loads.add(name)

    def end(self) -> None:
        """The current stage ends, if there is one."""
        self.update()
        self._past, self._current = self._record.actual.stages, None

    def _planned(self, name: str) -> str:
        ends_s = [
            stage.ends_s
            for stage in self._record.planned.stages
            if name in stage.nodes and stage.nodes[name].finishes
        ]
        return f" (planned: {ends_s[-1]:.1f} s)" if ends_s else ""
