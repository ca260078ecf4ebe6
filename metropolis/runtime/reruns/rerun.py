"""Repeats steps of a run, in lockstep and from its own answers: no call reaches a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any

from metropolis.llm.backends.replay import Replay
from metropolis.llm.base import Completion, LLMError, Request
from metropolis.llm.client import Client
from metropolis.llm.journal import key_of
from metropolis.rules.rules import lockstep
from metropolis.runtime.checks.randomized_runs import Trial
from metropolis.runtime.folder.calls_file import read_calls
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.history import read_history
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.setup import initial_entities
from metropolis.runtime.live.single_use import check_unused
from metropolis.runtime.live.stored import Start
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_options
from metropolis.world.record import StepRecord
from metropolis.world.saving import copies_of, restore_all, save
from metropolis.world.scenario import Scenario


class Recorded(Replay):
    """Answers from the journal of `origin`; records the first request without an answer.

    A request is for the model that the run's calls of its function had in its agent-step. A call
    that failed in the run fails again, and does not count as missing.
    """

    def __init__(self, origin: RunDirectory) -> None:
        super().__init__(origin.journal)
        self.missing: Request | None = None
        self.answered = 0
        """Number of successful calls in the recorded steps."""
        self._failed = set()
        self._models: dict[tuple[Step, AgentId, str], str] = {}
        calls = 0
        for line in read_history(origin.history, origin.run):
            calls = line.calls
        for _, (step, agent, call) in read_calls(origin.calls, calls, origin.run):
            self._models[step, agent, call.function] = call.model
            if call.failed:
                self._failed.add((step, agent, call.function))
            else:
                self.answered += 1

    def __len__(self) -> int:
        return len(self._answers)

    async def complete(self, request: Request) -> Completion:
        """See Replay."""
        place = request.step, request.agent, request.function
        named = replace(request, model=self._models.get(place))
        try:
            return await super().complete(named if key_of(named) in self._answers else request)
        except LLMError:  # agents may handle it, as in the run
            if place not in self._failed:
                self.missing = self.missing or request
            raise

    def made_other_request(self, request: Request) -> bool:
        """Whether the run made another request for the same agent, step and function."""
        origin = request.agent, request.step, request.function
        return any((key.agent, key.step, key.function) == origin for key in self._answers)


class Rerun:
    """The run in `origin`, with `world` and `agents` in their initial state.

    The agents are copied. Raises MetropolisError if the folder contains no run of that world, or
    if the agents have been used in a run.
    """

    def __init__(
        self,
        origin: RunDirectory,
        world: World,
        agents: Sequence[Agent],
        options: Mapping[str, Any],
    ) -> None:
        check_options(options)
        check_unused(agents)
        about = origin.read()
        if about["world"] != world.name:
            raise MetropolisError(
                f"{origin.root}: is a run of {about['world']}, not of {world.name}"
            )
        if not origin.journal.exists():
            raise MetropolisError(
                f"{origin.journal}: does not exist; restore the journal of the run's answers"
            )
        self.origin, self._world, self._agents, self._options = origin, world, agents, options
        self.seed: int = about["seed"]
        self.answers = Recorded(origin)

    def checkpoint(self, at_most: Step) -> Checkpoint:
        """The newest checkpoint up to step `at_most`, or else the beginning of the run."""
        known = self.origin.checkpoints.newest(at_most)
        if known is not None:
            self.origin.check_past(known)
            return known
        self.origin.check_beginning()
        names = [agent.name for agent in self._agents]
        entities = initial_entities(self._world, names, self.seed, self._options)
        return Checkpoint(
            0, entities, [], {agent.name: save(agent) for agent in self._agents}, 0.0, None
        )

    def steps(self, start: Checkpoint, end: Step) -> Iterator[tuple[StepRecord, StepRecord]]:
        """Yield for each step from `start` to below `end` the recorded and the repeated record."""
        names = [agent.name for agent in self._agents]
        # reset may set the world's attributes
        initial_entities(self._world, names, self.seed, self._options)
        agents = copies_of(self._agents)
        restore_all(agents, start.agents)
        self._trial = Trial(
            Scenario(self._world, agents),
            Start(start.step, start.entities, start.events),
            lockstep(),
            self.origin.seed,
            client=Client(self.answers, retries=0),
        )
        known = islice(self.origin.records(end), start.step, None)
        with closing(self._trial.records(end)) as steps:
            yield from zip(known, steps, strict=True)

    def checkpoint_after(self, step: Step) -> Checkpoint:
        """The state at `step`; the last call of `steps` ended there."""
        minds = {agent.name: save(agent) for agent in self._trial.scenario.agents}
        return Checkpoint(step, *self._trial.store.world(step), minds, 0.0, None)
