"""A world run live: `Simulation(world, agents, llm=client).run(steps=360)`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metropolis.controller.native import NativeController
from metropolis.durable import UnwritableError
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend, BudgetExhausted
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from metropolis.runtime.arguments import check_arguments, client_of
from metropolis.runtime.checkpointing import Checkpointer, InMemory, InStore, Source
from metropolis.runtime.coordinator import Coordinator
from metropolis.runtime.engine import Engine
from metropolis.runtime.event_loop import event_loop
from metropolis.runtime.folder.calls_file import CallsFile
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.history import HistoryWriter
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.run_trace import RunTrace, trace_meta
from metropolis.runtime.recorder import Recorder
from metropolis.runtime.result import INTERRUPTED, Interrupted, RunResult
from metropolis.runtime.reuse import Used
from metropolis.runtime.setup import begin, bodies, check_steps, checked_reach, rule_of
from metropolis.runtime.stored import StoredRun, stored_run
from metropolis.runtime.worker_pool import check_workers, crew_of
from metropolis.sim.virtual import IdleSelector, VirtualInstances
from metropolis.store.outcome import Outcome
from metropolis.trace.validate import validate_meta
from metropolis.types import MetropolisError, Position, Step
from metropolis.workers.event_loop import cancel_all, loop_is_running
from metropolis.workers.leases import retry
from metropolis.workers.local import LocalWorker
from metropolis.workers.response_cache import StoredAnswers
from metropolis.workers.turns import Turns
from metropolis.workers.watchdog import STALL_S, Watchdog
from metropolis.workers.worker_spec import Job
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_world_parts
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.saving import restore
from metropolis.world.state import State

CHECKPOINT_WALL_S = 180.0
LEASE_S = 10.0


class Simulation:
    """One run of a world. Iterate over `steps(n)`, or call `run(n)`.

    Args:
            world: the world and its rules.
            agents: its agents, in the order of their ids. A run changes them, so use them in one
                run only.
            llm: a client, or a backend to wrap in one; None: the world's offline author, without
                latency.
            mode: `out_of_order`, `lockstep` (a barrier after every step), or `sequential` (also
                only one agent, and one call, at a time).
            rule: for `out_of_order`: `versioned` or the paper's `conservative`.
            seed: of all randomness.
            options: passed to `World.reset`.
            out: a new folder for the run's files; None: everything stays in memory.
            resume: continue the run in `out`, or begin the branch that `metropolis.fork` created
                there, from its last checkpoint; answers already paid for are not bought again.
            trust: use a store that the folder names even if this user has not signed it.
            checkpoint_wall_s: checkpoint interval.
            store: where the run is kept: `memory`, `embedded` or the URL of a Redis or Valkey;
                None: in memory, or the store of the resumed run.
            workers: of a run in a store: the number of local workers; or `ray` or `ray:N`, in the
                cluster at `ray_address`, or else in a new cluster on this machine.
            lease_s: of a run in a store: seconds of silence after which a process counts as dead.
            keep_text: whether the trace contains prompts and answers.
            stall_s: seconds after which an agent that makes no progress and waits for no model is
                named on standard error; 0: never.
            about: plain data, stored in `run.json` for resuming the run.

    Raises MetropolisError on invalid arguments.
    """

    def __init__(
        self,
        world: World,
        agents: Sequence[Agent],
        llm: Client | Backend | None = None,
        *,
        mode: str = "out_of_order",
        rule: str = "versioned",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        trust: bool = False,
        checkpoint_wall_s: float = CHECKPOINT_WALL_S,
        store: str | None = None,
        workers: int | str = 1,
        ray_address: str | None = None,
        lease_s: float = LEASE_S,
        keep_text: bool = False,
        stall_s: float = STALL_S,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        times = {"checkpoint_wall_s": checkpoint_wall_s, "lease_s": lease_s, "stall_s": stall_s}
        check_arguments(seed, out, resume, store, options, about, **times)
        check_world_parts(world, agents)
        self.world, self.agents, self.seed = world, list(agents), seed
        self.client = client_of(llm, world)
        self.mode, self.rule = mode, rule if mode == "out_of_order" else None
        if mode == "sequential":
            self.client.gate.concurrency = 1
        self._keep_text, self._checkpoint_wall_s = keep_text, checkpoint_wall_s
        if self.client.closed and self.client.journal is not None:
            raise MetropolisError("the client was another run's and is closed; make a new one")
        self._causality = rule_of(mode, rule, checked_reach(world))
        names = [agent.name for agent in self.agents]
        begun = begin(world, names, seed, options or {})
        self._used = Used(world, self.agents)
        self._drawn_from = seed
        self._directory = None if out is None else RunDirectory(Path(out))
        self._about = about or {}
        self._checkpoint = None
        self._journal: Journal | None = None
        if self._directory is not None:
            validate_meta(trace_meta(world, names), f"the world {world.name!r}")
            self._checkpoint = self._directory.open(resume, world.name, seed, self._about)
            for branch in self._directory.lineage[-1:]:
                self._drawn_from = branch.seed
        self._stored = stored_run(store, self._directory, resume, self._virtual is not None, trust)
        self._workers, self._ray_address, self._lease_s = workers, ray_address, lease_s
        self._turns, self._stall_s = Turns(), stall_s
        check_workers(workers, stored=self._stored is not None, ray_address=ray_address)
        if self._directory is not None and self.client.journal is None:
            self._journal = self._directory.open_journal(self._checkpoint)
            self.client.keep(self._journal)
        if self._stored is not None:
            self._checkpoint = self._take_up(self._stored)
        self.notes: list[str] = [] if self._directory is None else self._directory.notes
        """Messages on damage found in the run's folder, and its repair."""
        self._begin(begun)
        self._started_wall_s, self._started_s = time.perf_counter(), self._clock_s()
        self._ran = self._interrupted = False
        self._wake: Callable[[], object] | None = None
        self._watchdog: Watchdog | None = None
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
        if self._directory is not None:  # the journal's lock excludes others
            self._directory.describe(self.world.name, self.seed, self._about)
        self._started_wall_s, self._started_s = time.perf_counter(), self._clock_s()
        selector = IdleSelector(self._leap) if self._virtual else None
        with event_loop(selector, self._turns, self._stall_s) as (loop, self._watchdog):
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
                self._recorder.close()
                if self._directory is not None and self._recorder.next_step and not full:
                    self._directory.write_trace(self._trace())

    def interrupt(self) -> None:
        """End the run soon, with complete files; for signal handlers and other threads."""
        self._interrupted = True
        if (wake := self._wake) is not None:
            wake()
        if self._watchdog is not None:
            self._watchdog.ending()

    def result(self) -> RunResult:
        """The result so far."""
        tally = self._recorder.calls_file.tally
        return RunResult(
            mode=self.mode,
            rule=self.rule,
            seed=self.seed,
            agents=len(self.agents),
            steps=self._recorder.next_step,
            stopped=self.stopped,
            history_sha256=self._recorder.history.sha256,
            history=self._history,
            calls=tally.calls,
            prompt_tokens=tally.prompt_tokens,
            output_tokens=tally.output_tokens,
            used=dict(sorted(tally.by_function.items())),
            usage=self.client.usage,
            bought=self.client.bought,
            simulated=self._virtual is not None,
            makespan_s=self._now_s(),
            wall_s=time.perf_counter() - self._started_wall_s,
            recorded=self._trace(),
        )

    # --- start of a run

    def _begin(self, begun: list[Entity]) -> None:
        """Start from the world at step 0, or from the checkpoint."""
        names = [agent.name for agent in self.agents]
        self._beginning = np.array(bodies(begun, names), np.float32)
        known = self._checkpoint
        self.first_step = 0 if known is None else known.step
        self._before_s = 0.0 if known is None else known.now_s
        entities = begun if known is None else known.entities
        self._state = State(
            self.world.metric, self.world.perception_radius, entities, self.first_step
        )
        self._positions = positions = bodies(entities, names)
        if known is not None:
            self._state.restore_events(known.events)
            if known.agents:  # otherwise claims contain the minds
                self._used.take_agents()
                for agent in self.agents:
                    restore(agent, known.agents[agent.name])
        files = self._directory
        at = np.array(positions, np.float32).reshape(-1, 2)
        written = files.open_records(self.first_step) if files else (HistoryWriter(), CallsFile())
        kept = files is None
        self._recorder = Recorder(names, at, self.first_step, *written, keep=kept)
        self._history: list[StepRecord] = []
        self._worker = LocalWorker(
            self.world,
            self.agents,
            self.client,
            self._drawn_from,
            clock=self._now_s,
            virtual=self._virtual is not None,
            keep_text=self._keep_text,
            one_by_one=self.mode == "sequential",
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
        if found is not None and self._directory is not None:
            self._directory.notes.clear()  # the checkpoints are not needed
        return found or self._checkpoint

    def _driver(self, stored: StoredRun, steps: Step) -> Coordinator:
        stored.begin(self.world, self.agents, self.seed, self._state, steps, self._now_s())
        job = Job(
            self.world,
            self.agents,
            self.client,
            self._drawn_from,
            stored.began_s,
            one_by_one=self.mode == "sequential",
            keep_text=self._keep_text,
            lease_s=self._lease_s,
            turns=self._turns,
            stall_s=self._stall_s,
        )
        crew = crew_of(self._workers, self._ray_address, job, stored)
        names = [agent.name for agent in self.agents]
        driver = Coordinator(stored.store, names, self.world.max_velocity, self._lease_s, crew)
        self.client.has_spent(retry(stored.store.bought))  # there are no other buyers from here on
        return driver

    # --- main loop

    def _pump(self, loop: asyncio.AbstractEventLoop, steps: Step) -> Iterator[StepRecord]:
        names = [agent.name for agent in self.agents]
        here = InMemory(self.agents, self._state)

        def commit(outcome: Outcome) -> None:
            self._recorder.commit(outcome)
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
        if self._directory is not None:
            checkpointer = Checkpointer(
                self._directory.checkpoints, names, source, steps, self._checkpoint_wall_s
            )
        self._wake = lambda: loop.call_soon_threadsafe(engine.end, Interrupted(INTERRUPTED))
        self.client.on_exhausted = self.client.on_unkept = engine.end  # even if agents catch it
        try:
            if isinstance(engine, Engine):
                loop.call_soon(engine.start)
            else:
                on_commit = self._recorder.commit
                loop.run_until_complete(engine.begin(controller, self._recorder, on_commit))
            if self._interrupted:
                self._wake()
            while self._recorder.next_step < steps and engine.failure is None:
                if engine.floor == self._recorder.next_step:  # no steps left by a killed driver
                    self._turns.complete(loop, engine.advance())
                for record in self._recorder.advance(engine.floor):
                    if self._directory is None:
                        self._history.append(record)
                    yield record
                    if checkpointer is not None and checkpointer.step == record.step + 1:
                        self._write(checkpointer)
                engine.passed()
                if self._journal is not None:
                    self._journal.passed(engine.floor)
                if checkpointer is not None:
                    checkpointer.plan(engine.newest_step)
            if self._recorder.next_step == steps:
                return
            assert engine.failure is not None
            if not isinstance(engine.failure, BudgetExhausted | Interrupted):
                raise engine.failure
            self.stopped = str(engine.failure)
        finally:
            self._wake = None
            loop.run_until_complete(engine.stop())

    def _write(self, checkpointer: Checkpointer) -> None:
        if self.client.journal is not None:
            self.client.journal.flush()
        past = self._recorder.sync(self._drawn_from, self._journal)
        checkpointer.write(past, self._now_s())

    @property
    def _virtual(self) -> VirtualInstances | None:
        backend = self.client.backend
        return backend if isinstance(backend, VirtualInstances) else None

    def _leap(self) -> bool:
        assert self._virtual is not None
        return not (self._worker.computing or self.client.pauses.waiting) and self._virtual.leap()

    def _now_s(self) -> float:
        return self._before_s + self._clock_s() - self._started_s

    def _clock_s(self) -> float:
        return time.perf_counter() if self._virtual is None else self._virtual.now_sim_s

    def _trace(self) -> RunTrace:
        scripted = isinstance(self.client.backend, Scripted | VirtualInstances)
        names = [agent.name for agent in self.agents]
        meta = trace_meta(self.world, names, "generated" if scripted else "recorded")
        return self._recorder.trace(meta, self._directory, self._beginning)
