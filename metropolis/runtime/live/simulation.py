"""A world run live: `Simulation(world, agents, llm=client).run(steps=360)`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Unpack

from metropolis.controller.native import NativeController
from metropolis.durable import UnwritableError
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend, BudgetExhausted
from metropolis.llm.client import Client
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.live.checkpointing import Checkpointer
from metropolis.runtime.live.configuration import (
    ConfigurationFields,
    RunConfiguration,
    configured,
    parse_workers,
)
from metropolis.runtime.live.event_loop import RunLoop, event_loop
from metropolis.runtime.live.executor import Executor
from metropolis.runtime.live.interruption import Interruption
from metropolis.runtime.live.metrics_port import metrics_server
from metropolis.runtime.live.optimistic import OptimisticWorkerPool
from metropolis.runtime.live.recorded_timeline import RecordedTimeline
from metropolis.runtime.live.recording import Recording
from metropolis.runtime.live.result import INTERRUPTED, Interrupted, RunResult
from metropolis.runtime.live.run_clock import RunClock, clock_since
from metropolis.runtime.live.run_control import RunControl
from metropolis.runtime.live.setup import (
    bodies,
    checked_reach,
    checked_steps,
    client_of,
    initial_entities,
    rule_of,
)
from metropolis.runtime.live.single_use import SingleUse
from metropolis.runtime.live.stored import Start, StoredRun, note_location, stored_run
from metropolis.runtime.live.worker_pool import (
    SharedWorkerPool,
    WorkerPool,
    check_workers,
    make_worker_pool,
)
from metropolis.sim.virtual import IdleSelector, VirtualInstances
from metropolis.store.base import Inspection, Nodes
from metropolis.store.memory import MemoryStore
from metropolis.types import MetropolisError, Step
from metropolis.workers.event_loop import cancel_all, loop_is_running
from metropolis.workers.invocations import Invocations
from metropolis.workers.leases import retry
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.minds import Minds
from metropolis.workers.response_cache import StoredAnswers
from metropolis.workers.worker_spec import WorkerSpec
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_function, check_world_parts
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.saving import restore_all


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
        **fields: Unpack[ConfigurationFields],
    ) -> None:
        self.configuration = configuration = configured(configuration, fields)
        check_world_parts(world, agents)
        self.world, self.agents = world, list(agents)
        self.client = client_of(llm, world)
        if configuration.one_by_one:
            self.client.gate.concurrency = 1
        if self.client.closed and self.client.journal is not None:
            raise MetropolisError("the client was another run's and is closed; make a new one")
        self._names = [agent.name for agent in self.agents]
        self.client.models.check_agents(self._names)
        self._causality = rule_of(configuration, checked_reach(world))
        options = configuration.options or {}
        initial = initial_entities(world, self._names, configuration.seed, options)
        self._single_use = SingleUse(world, self.agents)
        self._metrics = metrics_server(configuration.metrics_port)
        self._clock = RunClock(self.client.backend)
        self._recording = Recording(world, self.agents, configuration)
        virtual = self._clock.virtual is not None
        self._invocations = Invocations()
        with self._recording.keeping_answers(self.client):
            self._stored = stored_run(configuration, self._recording.directory, virtual, world)
            try:
                check_workers(
                    configuration.workers,
                    store=self._stored.address,
                    ray_address=configuration.ray_address,
                )
                note_location(self._stored, self._recording.directory)
                if not self._stored.shared:
                    self._recording.checkpoint = self._attach_store(self._stored)
                self._initial = initial
                self._restore_or_start(initial)
            except BaseException:
                self._stored.close()
                raise
        self._clock.start()
        self._ran, self._interruption = False, Interruption()
        on_ray, _ = parse_workers(configuration.workers)
        sends_calls = not on_ray or configuration.mode == "optimistic"
        self.control = RunControl(self.client, simulated=virtual, can_pause=sends_calls)
        """Pauses the run, and says how far it is; for other threads."""
        self.stopped: str | None = None
        """Why the run ended before its last step; None: it did not."""

    # --- public interface

    def run(self, steps: Step, on_step: Callable[[StepRecord], None] | None = None) -> RunResult:
        """Run up to step `steps`; `on_step` is called in the order of steps.

        An exhausted budget ends the run early (see `RunResult.stopped`). Raises LLMError if no
        agent handled a failed call, CausalityError if the world exceeds its declared bounds.
        """
        check_function("on_step", on_step)
        for record in self.steps(steps):
            if on_step is not None:
                on_step(record)
        return self.result()

    def steps(self, steps: Step) -> Generator[StepRecord, None, None]:
        """Yield the steps below `steps`, each once the floor has passed it.

        The run owns the world, the agents and the client, which it closes, until the iterator ends
        or is closed. The first Ctrl-C ends it after the code that runs, the second at once.
        """
        if self._ran:
            raise MetropolisError("a simulation runs once; make a new one")
        if loop_is_running():
            raise MetropolisError(
                "an event loop is running in this thread, as in a notebook; "
                "use `await asyncio.to_thread(simulation.run, steps)`"
            )
        steps = checked_steps(self.world, steps, max(self.first_step, self._recording.recorded))
        self._ran = True
        simulated = self._clock.virtual is not None
        selector = IdleSelector(self._advance_clock) if simulated else None
        with event_loop(selector, self._invocations, self.configuration.stall_s) as (
            loop,
            watchdog,
        ):
            self._interruption.watchdog = watchdog
            disk_is_full = False
            try:
                self._single_use.start()
                self._recording.describe(self._initial, steps, simulated=simulated)
                self._clock.start()
                yield from self._run_steps(loop, steps)
            except UnwritableError:
                disk_is_full = True
                raise
            finally:
                loop.ctrl_c.tidy()
                self._single_use.end()
                if self._metrics is not None:
                    self._metrics.close()
                loop.run_until_complete(cancel_all())  # plain agents in threads wait for these, too
                self._worker.close()
                self._stored.close()
                loop.run_until_complete(self.client.close())
                self._recording.recorder.close()
                if not disk_is_full:
                    self._recording.close_timeline()
                    self._recording.write_trace(generated=self._generated)

    @property
    def notes(self) -> list[str]:
        """Messages on damage found in the run's folder, and its repair."""
        return self._recording.notes

    def interrupt(self) -> None:
        """End the run soon, with complete files; for signal handlers and other threads."""
        self._interruption.request()

    def inspect(self) -> Inspection:
        """The run as its store shows it, in memory or not; the run must have begun."""
        return self._stored.store.inspect()

    def result(self) -> RunResult:
        """The result so far."""
        configuration, recorder = self.configuration, self._recording.recorder
        tally = recorder.calls_file.tally
        total = tally.total
        return RunResult(
            mode=configuration.mode,
            rule=configuration.rule if configuration.mode == "out_of_order" else None,
            seed=configuration.seed,
            agents=len(self.agents),
            steps=recorder.next_step,
            stopped=self.stopped,
            history_sha256=recorder.history.sha256,
            history=self._recording.history,
            calls=total.calls,
            prompt_tokens=total.prompt_tokens,
            output_tokens=total.output_tokens,
            by_function=dict(sorted(tally.by_function.items())),
            usage=self.client.usage,
            bought=self.client.bought,
            simulated=self._clock.virtual is not None,
            makespan_s=self._clock.now_s(),
            wall_s=self._clock.wall_s,
            resumed=configuration.resume,
            recorded=self._recording.trace(generated=self._generated),
        )

    # --- start of a run

    def _restore_or_start(self, initial: list[Entity]) -> None:
        """Start from the world at step 0, or from the checkpoint."""
        known = self._recording.checkpoint
        self.first_step = 0 if known is None else known.step
        self._clock.before_s = 0.0 if known is None else known.now_s
        entities = initial if known is None else known.entities
        self._start = Start(self.first_step, entities, () if known is None else known.events)
        if known is not None and known.agents:  # otherwise claims contain the minds
            self._single_use.claim_agents()
            restore_all(self.agents, known.agents)
        self._recording.open(bodies(initial, self._names), entities, self.first_step)
        self._worker = LocalWorker(
            self.world,
            self.agents,
            self.client,
            self._recording.seed,
            clock=self._clock.now_s,
            virtual=self._clock.virtual is not None,
            keep_text=self.configuration.keep_text,
            one_by_one=self.configuration.one_by_one,
            invocations=self._invocations,
        )

    # --- start of a run in a store

    def _attach_store(self, stored: StoredRun) -> Checkpoint | None:
        """Keep answers in the store, too; return the checkpoint at which recording starts."""
        self.client.journal = StoredAnswers(stored.store, self.client.journal)
        found = stored.checkpoint(self.agents)
        if found is not None:
            self._recording.notes.clear()  # the checkpoints are not needed
        return found or self._recording.checkpoint

    def _worker_spec(self) -> WorkerSpec:
        configuration = self.configuration
        return WorkerSpec(
            self.world,
            self.agents,
            self.client,
            self._recording.seed,
            self._stored.began_s,
            one_by_one=configuration.one_by_one,
            keep_text=configuration.keep_text,
            lease_s=configuration.lease_s,
            invocations=self._invocations,
            stall_s=configuration.stall_s,
        )

    def _make_worker_pool(self, spec: WorkerSpec) -> WorkerPool:
        """The workers of a run whose agents do not run ahead."""
        stored, configuration = self._stored, self.configuration
        if stored.shared and isinstance(stored.store, MemoryStore):
            return SharedWorkerPool(self._worker, stored.store)
        return make_worker_pool(configuration.workers, configuration.ray_address, spec, stored)

    # --- main loop

    def _executor(self, last_step: Step) -> Executor:
        configuration, world, stored = self.configuration, self.world, self._stored
        rule = self._causality

        def controller_of(nodes: Nodes) -> NativeController:
            metric, velocity = world.metric, world.reach.rounded_velocity
            return NativeController.of_rule(
                rule, metric, velocity, nodes.positions, last_step, steps=nodes.steps
            )

        minds = None
        if configuration.mode == "optimistic":
            minds = Minds(self.agents, self._recording.seed)
        committed = None if minds is None else minds.committed
        now_s, is_new = self._clock.now_s(), stored.info() is None
        stored.create(self.agents, configuration.seed, self._start, last_step, now_s, committed)
        timeline = None
        if self._recording.recorder.next_step < last_step:
            timeline = self._recorded_timeline(is_new=is_new)
        commit = self._recording.recorder.commit
        record = commit if self._metrics is None else self._metrics.recorded(commit)
        spec, optimistic = self._worker_spec(), None
        if minds is not None:
            optimistic = OptimisticWorkerPool(
                self._worker, stored, spec, minds, rule, last_step, configuration, timeline
            )
            record = optimistic.recorded(record)
        executor = Executor(
            controller_of,
            stored.store,
            optimistic or self._make_worker_pool(spec),
            record,
            last_step=last_step,
            max_velocity=world.max_velocity,
            lease_s=configuration.lease_s,
            timeline=timeline,
        )
        if self._metrics is not None:
            self._metrics.serve(executor, self.client, last_step, optimistic)
        self.client.charge(retry(stored.store.bought))  # there are no other buyers from here on
        return executor

    def _recorded_timeline(self, *, is_new: bool) -> RecordedTimeline | None:
        """The timeline of a run that `is_new` in its store."""
        clock, simulated = self._clock.now_s, self._clock.virtual is not None
        if not self._stored.shared:
            clock = clock_since(self._stored.began_s)  # the clock that the workers use
        return self._recording.open_timeline(clock, simulated=simulated, is_rerun=is_new)

    def _run_steps(self, loop: RunLoop, steps: Step) -> Iterator[StepRecord]:
        recording, recorder = self._recording, self._recording.recorder
        loop.run_until_complete(self.client.check())  # resolves the model's name for workers
        executor = self._executor(steps)
        checkpointer = None
        if recording.directory is not None:
            every_wall_s = self.configuration.checkpoint_wall_s
            checkpoints = recording.directory.checkpoints
            checkpointer = Checkpointer(checkpoints, self._names, executor, steps, every_wall_s)

        def wake() -> None:
            loop.call_soon_threadsafe(executor.end, Interrupted(INTERRUPTED))

        self._interruption.wake = wake
        self.control.begin(loop, executor, steps)
        # These end the run even if agents catch the errors.
        self.client.on_failure = executor.end
        try:
            loop.run_until_complete(executor.start(recorder.next_step))
            if self._interruption.requested:
                wake()
            while recorder.next_step < steps and executor.failure is None:
                if executor.floor == recorder.next_step:  # no recordable steps of a killed process
                    self._invocations.complete(loop, executor.advance())
                for record in recording.advance(executor.floor):
                    with loop.ctrl_c.read():
                        yield record
                    if checkpointer is not None and checkpointer.step == record.step + 1:
                        self._write(checkpointer)
                executor.collect()
                recording.unload(executor.floor)
                if checkpointer is not None:
                    checkpointer.plan(executor.newest_step)
            if recorder.next_step == steps:
                return
            assert executor.failure is not None
            if not isinstance(executor.failure, BudgetExhausted | Interrupted):
                raise executor.failure
            self.stopped = str(executor.failure)
        finally:
            loop.ctrl_c.tidy()
            self._invocations.end = Interrupted(INTERRUPTED)
            self._interruption.wake = None
            self._clock.stop()
            loop.run_until_complete(executor.stop())
            self.control.end()

    def _write(self, checkpointer: Checkpointer) -> None:
        if self.client.journal is not None:
            self.client.journal.flush()
        checkpointer.write(self._recording.sync(), self._clock.now_s())

    def _advance_clock(self) -> bool:
        virtual = self._clock.virtual
        assert virtual is not None
        waits = self.control.paused or self._worker.computing or self.client.pauses.waiting
        return not waits and virtual.leap()

    @property
    def _generated(self) -> bool:
        """Whether no model answers."""
        return isinstance(self.client.backend, Scripted | VirtualInstances)
