"""Runs an application by a schedule: the dynamic scheduler with real engines (SamuLLM §4.3).

When a node has finished, or the stage's boundary is reached, the follower chooses the next stage.
Copies outside it are stopped, which still belongs to the stage that ends, and then the new ones
are started; nodes that stay where they are continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from metropolis.llm.base import (
    RETRIED,
    LLMError,
    RateLimitedError,
    UnavailableError,
    UnreachableError,
)
from metropolis.llm.pauses import Pauses
from metropolis.plan.application import Application
from metropolis.plan.follow import Follower
from metropolis.plan.machine import ExecutionPlan, Machine
from metropolis.plan.placement import Gpus, place
from metropolis.plan.running.communicator import Call, Communicator
from metropolis.plan.running.engine import Ports, Sampling, call_of
from metropolis.plan.running.engine_command import EngineCommand
from metropolis.plan.running.folder import RunFolder
from metropolis.plan.running.model_copy import EngineOptions, ModelCopy, RunningNode
from metropolis.plan.running.schedule_check import check_schedule
from metropolis.plan.running.stages import StageLog
from metropolis.plan.timeline import Boundary, Stage
from metropolis.types import MetropolisError

NOTICE_S = 0.5
"""Pause after a failed request, in which the end of its engine is noticed."""
PAUSE_MAX_S = 30.0
"""Longest pause after a failure; the first pause takes half a second, and each one doubles."""
ENDING_S = 30.0
"""Maximum time in which the process of an unreachable engine ends; then the request has failed."""
FAILURES_MAX = 3
"""The run ends after so many bad or late answers to one request, from engines that still run."""
REFUSALS_MAX = 12
"""The run ends after so many answers 429 or 5xx to one request, which take about three minutes."""
SAVE_S = 2.0
"""Interval at which the record is written."""


@dataclass(frozen=True)
class Reports:
    """Functions that are called with what happens in a run."""

    log: Callable[[str], None] = lambda _: None
    """Called with a sentence for each stage and each engine that dies."""
    answered: Callable[[], object] = lambda: None
    """Called after every answer."""


class Runner:
    """A run of `application` in `folder`. Raises MetropolisError if the schedule does not fit."""

    def __init__(
        self,
        application: Application,
        machine: Machine,
        commands: Mapping[str, EngineCommand],
        folder: RunFolder,
        sampling: Sampling,
        options: EngineOptions,
    ) -> None:
        self._nodes = {node.name: node for node in application.nodes}
        self._models = {node.name: node.model for node in application.nodes}
        self._machine, self._commands, self._folder = machine, commands, folder
        self._sampling, self._options = sampling, options
        self.communicator = Communicator(application, folder.answers)
        check_schedule(folder.record.planned, application, machine)
        folder.use_paths({name: commands[model].path for name, model in self._models.items()})
        self._follower = Follower(folder.record.planned.planned, self._fits)
        self.running: dict[str, RunningNode] = {}
        """Node -> its state on GPUs."""
        self._ports = Ports()
        self._boundary: Boundary | None = None
        """The boundary of the current stage, until it is reached."""
        self._stage_ended = asyncio.Event()
        self._failures: Counter[tuple[Call, bool]] = Counter()
        """(request, whether the engine was too busy or failed itself) -> failures."""
        self._losses: dict[str, Counter[int]] = {name: Counter() for name in self._nodes}
        self._pauses = Pauses(sampling.seed)

    async def run(self, reports: Reports) -> None:
        """Run to completion. Raises MetropolisError if an engine cannot be started or a request
        fails; the answers so far are kept."""
        self._reports = reports
        self._stages = StageLog(self._folder.record, reports.log)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                saving = self._tasks.create_task(self._save_periodically())
                if self.communicator.unfinished:
                    await self._begin(self._first_stage())
                while self.communicator.unfinished:
                    await self._stage_ended.wait()
                    self._stage_ended.clear()
                    if self.communicator.unfinished:
                        await self._begin(self._follower.next_stage(*self._state()))
                await self._stop([*self.running])
                saving.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._stages.end()
        self._folder.write_answers(self.communicator)

    def _state(self) -> tuple[frozenset[str], Stage]:
        return self.communicator.unfinished, {n: each.plan for n, each in self.running.items()}

    # --- stages

    def _first_stage(self) -> Stage:
        """The first stage whose end has not come; a run that is continued passes the others."""
        unfinished = self.communicator.unfinished
        stage, former = self._follower.next_stage(unfinished, {}), None
        while stage != former and (planned := self._follower.planned) is not None:
            boundary = planned.boundary
            is_reached = boundary is not None and self._is_reached(boundary)
            if planned.plans.keys() <= unfinished and not is_reached:
                break
            stage, former = self._follower.next_stage(unfinished, stage), stage
        return stage

    def _fits(self, stage: Stage) -> bool:
        unfinished = self.communicator.unfinished
        needs_are_met = all(
            need not in unfinished or need in stage
            for name in stage
            for need in self._nodes[name].inputs
        )
        return needs_are_met and self._placed(stage) is not None

    def _placed(self, stage: Stage) -> dict[str, Gpus] | None:
        """The GPUs of each node; those that continue stay where they are, if possible."""
        unfinished = self.communicator.unfinished
        stays = {
            name: each.gpus
            for name, each in self.running.items()
            if name in unfinished and stage.get(name) == each.plan
        }
        machine = self._machine
        load_s = {name: machine.load_s(self._models[name], plan) for name, plan in stage.items()}
        return place(machine.gpus, machine.nvlink_group, stage, stays, load_s)

    async def _begin(self, stage: Stage) -> None:
        gpus = self._placed(stage)
        if not stage or gpus is None:
            raise MetropolisError(
                f"the schedule has no stage for {', '.join(sorted(self.communicator.unfinished))}"
            )
        continuing = {
            name
            for name, each in self.running.items()
            if stage.get(name) == each.plan and gpus[name] == each.gpus
        }
        boundary = self._follower.boundary
        if boundary is not None and (boundary.node not in stage or self._is_reached(boundary)):
            boundary = None
        self._boundary = boundary
        await self._stop([name for name in self.running if name not in continuing])
        # some may have finished meanwhile: then the next stage follows at once
        if stage := {name: stage[name] for name in stage if name in self.communicator.unfinished}:
            self._stages.begin(stage, gpus, self.running, continuing & stage.keys(), boundary)
            for name, plan in stage.items():
                if name not in continuing:
                    self._start(name, plan, gpus[name])
        self._save()

    def _is_reached(self, boundary: Boundary) -> bool:
        return self.communicator.open_requests(boundary.node) <= boundary.open_requests

    def _start(self, name: str, plan: ExecutionPlan, gpus: Gpus) -> None:
        node = self.running[name] = RunningNode(plan, gpus)
        command = self._commands[self._nodes[name].model]
        for number, of_copy in enumerate(gpus, 1):
            called = f"{name}, copy {number} on GPU {', '.join(map(str, of_copy))}"
            log_file = self._folder.log_file(name, number)
            losses, log = self._losses[name], self._reports.log
            copy = ModelCopy(
                called, command, self._ports, of_copy, log_file, self._options, losses, log
            )
            copy.supervision = self._tasks.create_task(
                copy.supervise(lambda: self._copy_is_ready(name, node))
            )
            node.copies.append(copy)
        self._stages.started(name, node)

    async def _stop(self, names: list[str]) -> None:
        await asyncio.gather(*(self.running[name].stop() for name in names))
        for name in names:
            node = self.running.pop(name)
            node.ready_s = self._stages.now_s if node.ready_s is None else node.ready_s

    def _copy_is_ready(self, name: str, node: RunningNode) -> None:
        if node.ready_s is None and all(copy.engine is not None for copy in node.copies):
            node.ready_s = self._stages.now_s
        self._dispatch(name)

    async def _save_periodically(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            self._save()

    def _save(self) -> None:
        self._stages.update()
        self._folder.save()

    # --- requests

    def _dispatch(self, name: str) -> None:
        """Send the ready requests of a node, as far as its copies have room."""
        node, open_requests = self.running.get(name), self.communicator.open_requests(name)
        while node is not None and (copy := node.free_copy(open_requests)) is not None:
            if (index := self.communicator.take(name)) is None:
                return
            task = self._tasks.create_task(self._complete(copy, (name, index)))
            copy.in_flight[index] = task
            task.add_done_callback(partial(self._ended, copy, (name, index)))

    def _ended(self, copy: ModelCopy, call: Call, task: asyncio.Task[bool]) -> None:
        """A request has left its copy, perhaps cancelled before it was sent."""
        del copy.in_flight[call[1]]
        if task.cancelled() or task.exception() is not None or not task.result():
            self.communicator.put_back(call)
            self._folder.record.nodes[call[0]].sent_again += 1
        self._dispatch(call[0])

    async def _complete(self, copy: ModelCopy, call: Call) -> bool:
        """Whether the engine has answered; raises LLMError if it refuses the request."""
        (name, index), engine = call, copy.engine
        if engine is None:  # the engine has died since the request was assigned to it
            return False
        node, prompt = self._nodes[name], self.communicator.prompt(call)
        context_tokens = self._machine.shape(node.model).context_tokens
        request = call_of(node, index, prompt, context_tokens, self._sampling)
        try:
            completion = await engine.complete(request, node.max_tokens)
        except RETRIED as error:
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    ENDING_S if isinstance(error, UnreachableError) else NOTICE_S
                ):
                    await engine.is_lost.wait()
            if not engine.is_lost.is_set():
                await self._failed(call, error)
            return False
        self._folder.put(request, completion)
        copy.deaths = 0
        self._stages.note_time()
        self._reports.answered()
        for woken in self.communicator.answered(call, completion):
            self._dispatch(woken)
        if not self.communicator.open_requests(name):
            self._stages.finished(name)
            self._stage_ended.set()
        elif self._boundary is not None and self._is_reached(self._boundary):
            self._boundary = None
            self._stage_ended.set()
        return True

    async def _failed(self, call: Call, error: LLMError) -> None:
        """Pause after a failure of a request; raises the error if there were too many."""
        is_refusal = isinstance(error, (UnavailableError, RateLimitedError))
        self._failures[call, is_refusal] += 1
        failures = self._failures[call, is_refusal]
        if failures >= (REFUSALS_MAX if is_refusal else FAILURES_MAX):
            raise error
        if isinstance(error, RateLimitedError) and error.retry_after_s:
            await asyncio.sleep(min(error.retry_after_s, self._options.answer_s))
        else:
            await self._pauses.wait(failures, PAUSE_MAX_S)
