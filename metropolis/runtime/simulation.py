"""A world run live: `Simulation(world, agents, llm=client).run(steps=360)`."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from metropolis.controller.native import NativeController
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Backend, BudgetExhausted
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from metropolis.runtime.beginning import begin, bodies, checked_reach, rule_of
from metropolis.runtime.checkpoint import Checkpoint
from metropolis.runtime.checkpointing import Checkpointer, InMemory, InStore, Source
from metropolis.runtime.crew import check_workers, crew_of
from metropolis.runtime.driver import Driver
from metropolis.runtime.engine import Engine
from metropolis.runtime.history import HistoryWriter
from metropolis.runtime.recorder import CallsFile, Recorder, trace_meta, trace_of
from metropolis.runtime.result import INTERRUPTED, Interrupted, RunResult
from metropolis.runtime.run_directory import RunDirectory
from metropolis.runtime.stored import StoredRun, stored_run
from metropolis.sim.virtual import IdleSelector, VirtualInstances
from metropolis.store.outcome import Outcome
from metropolis.trace.parquet import write_trace
from metropolis.trace.schema import Trace
from metropolis.trace.validate import validate_meta
from metropolis.types import MetropolisError, Position, Step
from metropolis.workers.answers import StoredAnswers
from metropolis.workers.job import Job
from metropolis.workers.leases import patiently
from metropolis.workers.local import LocalWorker
from metropolis.workers.loops import cancel_all, loop_is_running
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.saving import restore
from metropolis.world.state import State

LIVE_MODES = ("sequential", "lockstep", "out_of_order")
LIVE_RULES = ("versioned", "conservative")
CHECKPOINT_WALL_S = 180.0
LEASE_S = 10.0
COLLECTED = 50_000, 20, 100
"""Thresholds of Python's garbage collector: a run makes many objects and few cycles, and looking
for these as often as usual costs a fifth of its CPU time."""


class Simulation:
    """One run of a world. Iterate over `steps(n)`, or `run(n)` to the end.

    Args:
        world: its laws.
        agents: who lives there; their order is the order of agent ids.
        llm: a client, or a backend to make one for; None: the offline author's own words, at once.
        mode: `out_of_order`, `lockstep` (a barrier after every step), or `sequential` (moreover one
            agent at a time).
        rule: of `out_of_order`: `versioned` or the paper's `conservative`.
        seed: of all randomness.
        options: passed to `World.reset`.
        out: a new folder for the run's files; None: everything stays in memory.
        resume: go on with the run in `out`, or begin the branch that `metropolis.fork` has made
            there, from its last checkpoint; answers it has paid for are not bought again.
        checkpoint_wall_s: how often to write a checkpoint.
        store: where the run is kept: `memory`, `embedded` or the URL of a Redis or Valkey; None:
            in memory, or where the resumed run was before.
        workers: of a run in a store: how many run its clusters here; or `ray` or `ray:N`, in the
            cluster at `ray_address`, or else in one of this machine's.
        lease_s: of a run in a store: after so many seconds of silence somebody counts as dead.
        keep_text: whether the trace holds prompts and answers.
        about: what `run.json` keeps for whoever resumes the run, plain data.

    Raises MetropolisError on input that makes no sense.
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
        checkpoint_wall_s: float = CHECKPOINT_WALL_S,
        store: str | None = None,
        workers: int | str = 1,
        ray_address: str | None = None,
        lease_s: float = LEASE_S,
        keep_text: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in LIVE_MODES:
            raise MetropolisError(f"there is no mode {mode!r}; there are {', '.join(LIVE_MODES)}")
        if rule not in LIVE_RULES:
            raise MetropolisError(f"there is no rule {rule!r}; there are {', '.join(LIVE_RULES)}")
        if resume and out is None:
            raise MetropolisError("resume needs out, the folder of the run to go on with")
        self.world, self.agents, self.seed = world, list(agents), seed
        self.client = llm if isinstance(llm, Client) else Client(llm or Scripted())
        self.mode, self.rule = mode, rule if mode == "out_of_order" else None
        self._keep_text, self._checkpoint_wall_s = keep_text, checkpoint_wall_s
        if self.client.closed and self.client.journal is not None:
            raise MetropolisError("the client was another run's and is closed; make a new one")
        self._causality = rule_of(mode, rule, checked_reach(world))
        names = [agent.name for agent in self.agents]
        begun = begin(world, names, seed, options or {})
        self._drawn_from = seed
        self._directory = None if out is None else RunDirectory(Path(out))
        self._about = about or {}
        self._checkpoint = None
        if self._directory is not None:
            validate_meta(trace_meta(world, names), f"the world {world.name!r}")
            self._checkpoint = self._directory.open(resume, world.name, seed, self._about)
            for branch in self._directory.lineage[-1:]:
                self._drawn_from = branch.seed
            if self.client.journal is None:
                self.client.keep(Journal(self._directory.journal))
        self._stored = stored_run(store, self._directory, resume, self._virtual is not None)
        self._workers, self._ray_address, self._lease_s = workers, ray_address, lease_s
        check_workers(workers, stored=self._stored is not None)
        if self._stored is not None:
            self._checkpoint = self._take_up(self._stored)
        self._begin(begun)
        self._started_wall_s, self._started_s = time.perf_counter(), self._clock_s()
        self._ran = self._interrupted = False
        self._wake: Callable[[], object] | None = None
        self.stopped: str | None = None
        """Why the run ended before its last step; None: it did not."""

    # --- what users call

    def run(self, steps: Step, on_step: Callable[[StepRecord], None] | None = None) -> RunResult:
        """Run up to step `steps`; `on_step` is called in the order of steps.

        An exhausted budget ends the run early, as `RunResult.stopped` tells. Raises LLMError when
        a call failed that no agent handled, CausalityError when the world breaks its own bounds.
        """
        for record in self.steps(steps):
            if on_step is not None:
                on_step(record)
        return self.result()

    def steps(self, steps: Step) -> Generator[StepRecord, None, None]:
        """The steps below `steps`, each as soon as the floor has passed it.

        The world, the agents and the client belong to the run until the iterator ends or is
        closed; the client is closed then.
        """
        if self._ran:
            raise MetropolisError("a simulation runs once; make a new one")
        if loop_is_running():
            raise MetropolisError(
                "an event loop is running in this thread, as in a notebook; "
                "use `await asyncio.to_thread(simulation.run, steps)`"
            )
        if steps < self.first_step:
            raise MetropolisError(
                f"the run has come to step {self.first_step} already; it cannot end at {steps}"
            )
        self._ran = True
        if self._directory is not None:  # nobody else is at it: the journal is ours
            self._directory.describe(self.world.name, self.seed, self._about)
        self._started_wall_s, self._started_s = time.perf_counter(), self._clock_s()
        loop = asyncio.SelectorEventLoop(IdleSelector(self._leap) if self._virtual else None)
        collected = gc.get_threshold()
        try:
            gc.set_threshold(*COLLECTED)
            self.world.seal()
            yield from self._pump(loop, steps)
        finally:
            gc.set_threshold(*collected)
            self.world.unseal()
            loop.run_until_complete(cancel_all())  # what plain agents in threads wait for, too
            self._worker.close()
            if self._stored is not None:
                self._stored.close()
            loop.run_until_complete(self.client.close())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            self._recorder.close()
            if self._directory is not None and self._recorder.next_step:
                write_trace(self._trace()(), self._directory.trace)

    def interrupt(self) -> None:
        """Let the run end soon, its files whole; for signal handlers and other threads."""
        self._interrupted = True
        if (wake := self._wake) is not None:
            wake()

    def result(self) -> RunResult:
        """The run as far as it has come."""
        calls = [call for _, _, call in self._recorder.calls]
        return RunResult(
            mode=self.mode,
            rule=self.rule,
            seed=self.seed,
            agents=len(self.agents),
            steps=self._recorder.next_step,
            stopped=self.stopped,
            history_sha256=self._recorder.history.sha256,
            history=self._history,
            calls=len(calls),
            prompt_tokens=sum(call.prompt_tokens for call in calls),
            output_tokens=sum(call.output_tokens for call in calls),
            usage=self.client.usage,
            simulated=self._virtual is not None,
            makespan_s=self._now_s(),
            wall_s=time.perf_counter() - self._started_wall_s,
            make_trace=self._trace(),
        )

    # --- how a run begins

    def _begin(self, begun: list[Entity]) -> None:
        """Take the world as it was at step 0, or as the checkpoint has it."""
        names = [agent.name for agent in self.agents]
        self._beginning = np.array(bodies(begun, names), np.float32)
        known = self._checkpoint
        self.first_step = 0 if known is None else known.step
        self._before_s = 0.0 if known is None else known.now_s
        entities = begun if known is None else known.entities
        self._state = State(
            self.world.metric, self.world.perception_radius, entities, self.first_step
        )
        positions = bodies(entities, names)
        if known is not None:
            self._state.restore_events(known.events)
            for agent in self.agents if known.agents else ():  # else claims bring their minds
                restore(agent, known.agents[agent.name])
        files = self._directory
        self._recorder = Recorder(
            names,
            np.array(positions, np.float32).reshape(-1, 2),
            self.first_step,
            HistoryWriter(files.history if files else None, self.first_step),
            CallsFile(
                files.calls if files else None, self.first_step, known.calls if known else None
            ),
        )
        if known is not None and files is not None:
            self._recorder.restore(files.positions(self._beginning, names, self.first_step))
        self._positions = positions
        self._history: list[StepRecord] = []
        self._worker = LocalWorker(
            self.world,
            self.agents,
            self.client,
            self._drawn_from,
            clock=self._now_s,
            keep_text=self._keep_text,
            one_by_one=self.mode == "sequential",
        )

    def _controller(
        self, positions: Sequence[Position], steps: Sequence[Step], last_step: Step
    ) -> NativeController:
        world = self.world
        return NativeController.of_rule(
            self._causality, world.metric, world.max_velocity, positions, last_step, steps=steps
        )

    # --- how a run in a store begins

    def _take_up(self, stored: StoredRun) -> Checkpoint | None:
        """Where the recorder goes on; from now on answers are kept in the store, too."""
        self.client.journal = StoredAnswers(stored.store, self.client.journal)
        return stored.checkpoint() or self._checkpoint

    def _driver(self, stored: StoredRun, steps: Step) -> Driver:
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
        )
        crew = crew_of(self._workers, self._ray_address, job, stored)
        names = [agent.name for agent in self.agents]
        driver = Driver(stored.store, names, self.world.max_velocity, self._lease_s, crew)
        self.client.has_spent(patiently(stored.store.bought))  # nobody else buys from now on
        return driver

    # --- how it goes on

    def _pump(self, loop: asyncio.AbstractEventLoop, steps: Step) -> Iterator[StepRecord]:
        names = [agent.name for agent in self.agents]
        here = InMemory(self.agents, self._state)

        def commit(outcome: Outcome) -> None:
            self._recorder.commit(outcome)
            here.commit(outcome.step, outcome.agents)

        loop.run_until_complete(self.client.check())  # which finds the model's name for workers
        engine: Engine | Driver
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
        self.client.on_exhausted = engine.end  # whatever agents do with the error
        try:
            if isinstance(engine, Engine):
                loop.call_soon(engine.start)
            else:
                on_commit = self._recorder.commit
                loop.run_until_complete(engine.begin(controller, self._recorder, on_commit))
            if self._interrupted:
                self._wake()
            while self._recorder.next_step < steps and engine.failure is None:
                if engine.floor == self._recorder.next_step:  # not what a killed driver left
                    loop.run_until_complete(engine.advance())
                for record in self._recorder.advance(engine.floor):
                    if self._directory is None:
                        self._history.append(record)
                    yield record
                    if checkpointer is not None and checkpointer.step == record.step + 1:
                        self._write(checkpointer)
                engine.passed()
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
        self._recorder.flush(durably=True)
        if self.client.journal is not None:
            self.client.journal.flush()
        checkpointer.write(len(self._recorder.calls), self._now_s())

    @property
    def _virtual(self) -> VirtualInstances | None:
        backend = self.client.backend
        return backend if isinstance(backend, VirtualInstances) else None

    def _leap(self) -> bool:
        assert self._virtual is not None
        return self._worker.computing == 0 and self._virtual.leap()

    def _now_s(self) -> float:
        return self._before_s + self._clock_s() - self._started_s

    def _clock_s(self) -> float:
        return time.perf_counter() if self._virtual is None else self._virtual.now_sim_s

    def _trace(self) -> Callable[[], Trace]:
        scripted = isinstance(self.client.backend, Scripted | VirtualInstances)
        return partial(
            trace_of,
            self.world,
            [agent.name for agent in self.agents],
            list(self._recorder.positions),
            list(self._recorder.calls),
            "generated" if scripted else "recorded",
        )
