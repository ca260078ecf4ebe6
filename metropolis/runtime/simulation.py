"""A world run live: `Simulation(world, agents, llm=client).run(steps=360)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from metropolis.controller.native import NativeController
from metropolis.durable import UnwritableError
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend, BudgetExhausted
from metropolis.llm.client import Client
from metropolis.runtime.checkpointing import Checkpointer, InMemory, InStore, Source
from metropolis.runtime.configuration import DEFAULTS, RunConfiguration
from metropolis.runtime.coordinator import Coordinator
from metropolis.runtime.engine import Engine
from metropolis.runtime.event_loop import event_loop
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.interruption import Interruption
from metropolis.runtime.recording import Recording
from metropolis.runtime.result import INTERRUPTED, Interrupted, RunResult
from metropolis.runtime.reuse import Used
from metropolis.runtime.run_clock import RunClock
from metropolis.runtime.setup import begin, bodies, check_steps, checked_reach, client_of, rule_of
from metropolis.runtime.stored import StoredRun, stored_run
from metropolis.runtime.worker_pool import check_workers, crew_of
from metropolis.sim.virtual import IdleSelector, VirtualInstances
from metropolis.store.outcome import Outcome
from metropolis.types import MetropolisError, Position, Step
from metropolis.workers.event_loop import cancel_all, loop_is_running
from metropolis.workers.leases import retry
from metropolis.workers.local import LocalWorker
from metropolis.workers.response_cache import StoredAnswers
from metropolis.workers.turns import Turns
from metropolis.workers.worker_spec import Job
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_world_parts
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.saving import restore
from metropolis.world.state import State


class Simulation:
    """One run of a world. Iterate over `steps(n)`, or call `run(n)`.

    Args:
            world: the world and its rules.
            agents: its agents, in the order of their ids. A run changes them, so use them in one
                run only.
            llm: a client, or a backend to wrap in one; None: the world's offline author, without
                latency.
            configuration: see `RunConfiguration`; None: its defaults.
            fields: fields of the configuration to change, as in `Simulation(…, seed=7)`.

    Raises MetropolisError on invalid arguments.
    """

    def __init__(
        self,
        world: World,
        agents: Sequence[Agent],
        llm: Client | Backend | None = None,
        configuration: RunConfiguration | None = None,
        **fields: Any,
    ) -> None:
        self.configuration = how = replace(configuration or DEFAULTS, **fields)
        check_world_parts(world, agents)
        self.world, self.agents = world, list(agents)
        self.client = client_of(llm, world)
        if how.one_by_one:
            self.client.gate.concurrency = 1
        if self.client.closed and self.client.journal is not None:
            raise MetropolisError("the client was another run's and is closed; make a new one")
        self._causality = rule_of(how, checked_reach(world))
        names = [agent.name for agent in self.agents]
        begun = begin(world, names, how.seed, how.options or {})
        self._used = Used(world, self.agents)
        self._clock = RunClock(self.client.backend)
        self._recording = Recording(world, names, how)
        self._stored = stored_run(how, self._recording.directory, self._clock.virtual is not None)
        self._turns = Turns()
        check_workers(how.workers, stored=self._stored is not None, ray_address=how.ray_address)
        self._recording.keep_answers(self.client)
        if self._stored is not None:
            self._recording.checkpoint = self._take_up(self._stored)
        self._begin(begun)
        self._clock.start()
        self._ran = False
        self._interruption = Interruption()
        self.stopped: str | None = None
        """Why the run ended before its last step; None: it did not."""

    # --- public interface

    def run(self, steps: Step, on_step: Callable[[StepRecord], None] | None = None) -> RunResult:
        """Run up to step `steps`; `on_step` is called in the order of steps.

        An exhausted budget ends the run early (see `RunResult.stopped`). Raises LLMError if no
        agent handled a failed call, CausalityError if the world exceeds its declared bounds.
        """
        for record in self.steps(steps):
            if on_step is not None:
                on_step(record)
        return self.result()

    def steps(self, steps: Step) -> Generator[StepRecord, None, None]:
        """Yield the steps below `steps`, each once the floor has passed it.

        The run owns the world, the agents and the client until the iterator ends or is closed,
        which closes the client.
        """
        if self._ran:
            raise MetropolisError("a simulation runs once; make a new one")
        if loop_is_running():
            raise MetropolisError(
                "an event loop is running in this thread, as in a notebook; "
                "use `await asyncio.to_thread(simulation.run, steps)`"
            )
        check_steps(steps, self.first_step)
        self._ran = True
        self._used.begin()
        self._recording.describe()
        self._clock.start()
        selector = IdleSelector(self._leap) if self._clock.virtual else None
        with event_loop(selector, self._turns, self.configuration.stall_s) as (loop, watchdog):
            self._interruption.watchdog = watchdog
            full = False  # whether the disk is full
            try:
                self.world.seal()
                yield from self._pump(loop, steps)
            except UnwritableError:
                full = True
                raise
            finally:
                self.world.unseal()
                self._used.end()
                loop.run_until_complete(cancel_all())  # plain agents in threads wait for these, too
                self._worker.close()
                if self._stored is not None:
                    self._stored.close()
                loop.run_until_complete(self.client.close())
                self._recording.recorder.close()
                if not full:
                    self._recording.write_trace(generated=self._generated)

    @property
    def notes(self) -> list[str]:
        """Messages on damage found in the run's folder, and its repair."""
        return self._recording.notes

    def interrupt(self) -> None:
        """End the run soon, with complete files; for signal handlers and other threads."""
        self._interruption.request()

    def result(self) -> RunResult:
        """The result so far."""
        how, recorder = self.configuration, self._recording.recorder
        tally = recorder.calls_file.tally
        return RunResult(
            mode=how.mode,
            rule=how.rule if how.mode == "out_of_order" else None,
            seed=how.seed,
            agents=len(self.agents),
            steps=recorder.next_step,
            stopped=self.stopped,
            history_sha256=recorder.history.sha256,
            history=self._recording.history,
            calls=tally.calls,
            prompt_tokens=tally.prompt_tokens,
            output_tokens=tally.output_tokens,
            used=dict(sorted(tally.by_function.items())),
            usage=self.client.usage,
            bought=self.client.bought,
            simulated=self._clock.virtual is not None,
            makespan_s=self._clock.now_s(),
            wall_s=self._clock.wall_s,
            recorded=self._recording.trace(generated=self._generated),
        )

    # --- start of a run

    def _begin(self, begun: list[Entity]) -> None:
        """Start from the world at step 0, or from the checkpoint."""
        names = [agent.name for agent in self.agents]
        known = self._recording.checkpoint
        self.first_step = 0 if known is None else known.step
        self._clock.before_s = 0.0 if known is None else known.now_s
        entities = begun if known is None else known.entities
        self._state = State(
            self.world.metric, self.world.perception_radius, entities, self.first_step
        )
        self._positions = bodies(entities, names)
        if known is not None:
            self._state.restore_events(known.events)
            if known.agents:  # otherwise claims contain the minds
                self._used.take_agents()
                for agent in self.agents:
                    restore(agent, known.agents[agent.name])
        self._recording.begin(bodies(begun, names), self._positions, self.first_step)
        self._worker = LocalWorker(
            self.world,
            self.agents,
            self.client,
            self._recording.seed,
            clock=self._clock.now_s,
            virtual=self._clock.virtual is not None,
            keep_text=self.configuration.keep_text,
            one_by_one=self.configuration.one_by_one,
            turns=self._turns,
        )

    def _controller(
        self, positions: Sequence[Position], steps: Sequence[Step], last_step: Step
    ) -> NativeController:
        world = self.world
        return NativeController.of_rule(
            self._causality, world.metric, world.max_velocity, positions, last_step, steps=steps
        )

    # --- start of a run in a store

    def _take_up(self, stored: StoredRun) -> Checkpoint | None:
        """Find the recorder's checkpoint; from here on the store keeps answers, too."""
        self.client.journal = StoredAnswers(stored.store, self.client.journal)
        found = stored.checkpoint()
        if found is not None:
            self._recording.notes.clear()  # the checkpoints are not needed
        return found or self._recording.checkpoint

    def _driver(self, stored: StoredRun, steps: Step) -> Coordinator:
        how, now_s = self.configuration, self._clock.now_s()
        stored.begin(self.world, self.agents, how.seed, self._state, steps, now_s)
        job = Job(
            self.world,
            self.agents,
            self.client,
            self._recording.seed,
            stored.began_s,
            one_by_one=how.one_by_one,
            keep_text=how.keep_text,
            lease_s=how.lease_s,
            turns=self._turns,
            stall_s=how.stall_s,
        )
        crew = crew_of(how.workers, how.ray_address, job, stored)
        names = [agent.name for agent in self.agents]
        driver = Coordinator(stored.store, names, self.world.max_velocity, how.lease_s, crew)
        self.client.has_spent(retry(stored.store.bought))  # there are no other buyers from here on
        return driver

    # --- main loop

    def _pump(self, loop: asyncio.AbstractEventLoop, steps: Step) -> Iterator[StepRecord]:
        names = [agent.name for agent in self.agents]
        here = InMemory(self.agents, self._state)

        recording = self._recording

        def commit(outcome: Outcome) -> None:
            recording.recorder.commit(outcome)
            here.commit(outcome.step, outcome.agents)

        loop.run_until_complete(self.client.check())  # resolves the model's name for workers
        engine: Engine | Coordinator
        source: Source = here
        if self._stored is None:
            controller = self._controller(self._positions, [self.first_step] * len(names), steps)
            engine = Engine(controller, self._worker, self._state, names, commit)
        else:
            engine = self._driver(self._stored, steps)
            controller = self._controller(engine.nodes.positions, engine.nodes.steps, steps)
            source = InStore(len(names), self._stored.store, engine)
        checkpointer = None
        if recording.directory is not None:
            every_wall_s = self.configuration.checkpoint_wall_s
            checkpoints = recording.directory.checkpoints
            checkpointer = Checkpointer(checkpoints, names, source, steps, every_wall_s)

        def wake() -> None:
            loop.call_soon_threadsafe(engine.end, Interrupted(INTERRUPTED))

        self._interruption.wake = wake
        self.client.on_exhausted = self.client.on_unkept = engine.end  # even if agents catch it
        try:
            if isinstance(engine, Engine):
                loop.call_soon(engine.start)
            else:
                on_commit = recording.recorder.commit
                loop.run_until_complete(engine.begin(controller, recording.recorder, on_commit))
            if self._interruption.requested:
                wake()
            while recording.recorder.next_step < steps and engine.failure is None:
                if engine.floor == recording.recorder.next_step:  # no steps left by a killed driver
                    self._turns.complete(loop, engine.advance())
                for record in recording.advance(engine.floor):
                    yield record
                    if checkpointer is not None and checkpointer.step == record.step + 1:
                        self._write(checkpointer)
                engine.passed()
                recording.passed(engine.floor)
                if checkpointer is not None:
                    checkpointer.plan(engine.newest_step)
            if recording.recorder.next_step == steps:
                return
            assert engine.failure is not None
            if not isinstance(engine.failure, BudgetExhausted | Interrupted):
                raise engine.failure
            self.stopped = str(engine.failure)
        finally:
            self._interruption.wake = None
            loop.run_until_complete(engine.stop())

    def _write(self, checkpointer: Checkpointer) -> None:
        if self.client.journal is not None:
            self.client.journal.flush()
        checkpointer.write(self._recording.sync(), self._clock.now_s())

    def _leap(self) -> bool:
        virtual = self._clock.virtual
        assert virtual is not None
        return not (self._worker.computing or self.client.pauses.waiting) and virtual.leap()

    @property
    def _generated(self) -> bool:
        """Whether no model answers."""
        return isinstance(self.client.backend, Scripted | VirtualInstances)
