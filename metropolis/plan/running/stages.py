"""The stages of a run as they were, beside those that were planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from metropolis.plan.placement import Gpus
from metropolis.plan.running.folder import RunRecord
from metropolis.plan.running.model_copy import RunningNode
from metropolis.plan.schedule import Schedule, ScheduleStage, StageNode
from metropolis.plan.timeline import Stage


@dataclass
class _Begun:
    """A stage that has begun: its nodes on GPUs, and those that were loaded."""

    begins_s: float
    nodes: dict[str, RunningNode]
    loads: set[str]


class StageLog:
    """Records stages in `record`; `log` receives a line for each. Time continues after a resume."""

    def __init__(self, record: RunRecord, log: Callable[[str], None]) -> None:
        self._record, self._log = record, log
        self._offset_s = record.elapsed_s - time.monotonic()
        self._current: _Begun | None = None
        self._finished: list[str] = []
        """Nodes that have finished since the last stage began."""

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() + self._offset_s

    def note_time(self) -> None:
        """Record how long the run has lasted."""
        self._record.elapsed_s = self.now_s

    def finished(self, name: str) -> None:
        """A node has finished."""
        self._finished.append(name)

    def begin(
        self,
        stage: Stage,
        gpus: Mapping[str, Gpus],
        running: Mapping[str, RunningNode],
        continuing: Collection[str],
        unfinished: Collection[str],
    ) -> None:
        """A stage begins; the former ends."""
        why = [f"{name} has finished{self._planned(name)}" for name in self._finished]
        self.end(unfinished)
        number = len(self._record.actual.stages) + 1
        self._current = _Begun(self.now_s, {name: running[name] for name in continuing}, set())
        runs = [
            f"{name} {plan} on GPUs {shown_gpus(gpus[name])}"
            + " (loads)" * (name not in continuing)
            for name, plan in stage.items()
        ]
        self._log(f"stage {number} at {self.now_s:.1f} s: {'; '.join([*why, *runs])}")

    def started(self, name: str, node: RunningNode) -> None:
        """A node is loaded in the current stage."""
        assert self._current is not None
        self._current.nodes[name] = node
        self._current.loads.add(name)

    def end(self, unfinished: Collection[str]) -> None:
        """The current stage ends, if there is one."""
        self.note_time()
        self._finished.clear()
        begun, self._current = self._current, None
        if begun is None:
            return
        ends_s = self.now_s
        nodes = {
            name: StageNode(
                *node.plan,
                gpus=node.gpus,
                loads=name in begun.loads,
                loaded_s=ends_s if node.ready_s is None else node.ready_s,
                finishes=name not in unfinished,
            )
            for name, node in begun.nodes.items()
        }
        stages = (*self._record.actual.stages, ScheduleStage(begun.begins_s, ends_s, nodes))
        self._record.actual = Schedule(self._record.actual.method, stages)

    def _planned(self, name: str) -> str:
        ends_s = [
            stage.ends_s
            for stage in self._record.planned.stages
            if name in stage.nodes and stage.nodes[name].finishes
        ]
        return f" (planned: {ends_s[-1]:.1f} s)" if ends_s else ""


def shown_gpus(gpus: Gpus) -> str:
    """The GPUs of each copy: those of a copy with +, copies with commas between them."""
    return ", ".join("+".join(map(str, copy)) for copy in gpus)
