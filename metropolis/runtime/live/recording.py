"""What a run leaves: its records, in memory or in its folder, and the answers paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from metropolis.runtime.folder.calls_file import CallsFile
from metropolis.runtime.folder.checkpoint import Past
from metropolis.runtime.folder.history import HistoryWriter
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.run_trace import RunTrace, trace_meta
from metropolis.runtime.folder.view_file import write_view
from metropolis.runtime.live.configuration import RunConfiguration
from metropolis.runtime.live.recorded_dependencies import RecordedDependencies
from metropolis.runtime.live.recorded_timeline import RecordedTimeline
from metropolis.runtime.live.recorder import Recorder
from metropolis.runtime.live.setup import bodies
from metropolis.timeline.reader import TimelineFollower
from metropolis.timeline.writer import TimelineWriter
from metropolis.trace.validate import validate_meta
from metropolis.types import MetropolisError, Position, Step
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity
from metropolis.world.record import StepRecord
from metropolis.world.saved_check import save_checked


class Recording:
    """The records of one run of `world` with `agents`.

    Opens the run's folder, if it has one: raises MetropolisError if that is not possible, if its
    world cannot be recorded in a trace, or if an agent cannot be saved.
    """

    def __init__(
        self, world: World, agents: Sequence[Agent], configuration: RunConfiguration
    ) -> None:
        names = [agent.name for agent in agents]
        self._world, self._names, self._configuration = world, names, configuration
        out = configuration.out
        self.directory = None if out is None else RunDirectory(Path(out))
        self.checkpoint = None
        """The checkpoint in the folder from which the run continues, if any."""
        self.seed = configuration.seed
        """The seed of all randomness from the first step on: a branch may change it."""
        self._journal: Journal | None = None
        self._timeline: TimelineWriter | None = None
        self.history: list[StepRecord] = []
        """The steps so far, of a run without a folder."""
        if self.directory is not None:
            if not configuration.resume:
                self.directory.check_free()  # before the agents are saved, which can take long
            validate_meta(trace_meta(world, names), f"the world {world.name!r}")
            for agent in agents:  # not only at the first checkpoint, after minutes
                save_checked(agent)
            self.checkpoint = self.directory.open(
                configuration.resume, world.name, self.seed, configuration.about or {}
            )
            if self.directory.lineage:
                self.seed = self.directory.lineage[-1].seed

    @property
    def recorded(self) -> Step:
        """The number of steps that were recorded before this process."""
        return self.recorder.history.recorded

    @property
    def notes(self) -> list[str]:
        """Messages on damage found in the run's folder, and its repair."""
        return [] if self.directory is None else self.directory.notes

    @contextmanager
    def keeping_answers(self, client: Client) -> Iterator[None]:
        """Keep the answers of `client` in the folder, unless it has a journal of its own.

        An error in the body closes the journal: its lock would exclude the next attempt.
        """
        if self.directory is not None and client.journal is None:
            self._journal = self.directory.open_journal(self.checkpoint)
        try:
            if self._journal is not None:
                client.use_journal(self._journal)
            yield
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise

    def open(
        self, beginning: Sequence[Position], entities: Sequence[Entity], first_step: Step
    ) -> None:
        """Open the records; agents are at `beginning` at step 0, `entities` exist at `first_step`.

        Of a run that continues, the dependencies by value are not known.
        """
        self._beginning, self._first_step = np.array(beginning, np.float32), first_step
        at = np.array(bodies(entities, self._names), np.float32).reshape(-1, 2)
        known = None
        if not first_step:
            known = RecordedDependencies(self._world, self._names, entities, self.seed)
        files = self.directory
        written = files.open_records(first_step) if files else (HistoryWriter(), CallsFile())
        self.recorder = Recorder(
            self._names, at, first_step, *written, keep=files is None, dependencies=known
        )

    def describe(self, initial: Sequence[Entity], target: Step, *, simulated: bool) -> None:
        """Write run.json and view.json; the journal's lock excludes other processes.

        `initial` exist at step 0; the run ends before step `target`.
        """
        if self.directory is not None:
            seed, about = self._configuration.seed, self._configuration.about or {}
            self.directory.describe(self._world.name, seed, about)
            assert self.directory.run is not None
            write_view(
                self.directory.root,
                self._world,
                self._names,
                initial,
                run=self.directory.run,
                mode=self._configuration.mode,
                simulated=simulated,
                target=target,
            )

    def open_timeline(
        self, clock: Callable[[], float], *, simulated: bool, is_rerun: bool
    ) -> RecordedTimeline | None:
        """The timeline from here on; None: the run has no folder, or records none.

        `clock` gives the time of the run. `is_rerun`: the run repeats all steps from here on that
        an earlier process has run.
        """
        if self.directory is None or not self._configuration.timeline:
            return None
        assert self.directory.run is not None
        earlier = None
        if not is_rerun:
            with suppress(MetropolisError):  # it is damaged, and not needed to resume
                earlier = TimelineFollower(self.directory.timeline).poll()
        self._timeline = TimelineWriter(
            self.directory.timeline,
            len(self._names),
            clock="simulated" if simulated else "real",
            run=self.directory.run,
            first_step=self.recorder.next_step if is_rerun else None,
        )
        return RecordedTimeline(self._timeline, clock, earlier, self.recorder.next_step)

    def close_timeline(self) -> None:
        """Write the rest of the timeline, if there is one."""
        if self._timeline is not None:
            self._timeline.close()

    def advance(self, floor: Step) -> Iterator[StepRecord]:
        """Record and yield the steps below `floor`, one by one."""
        if self.directory is not None and self.recorder.next_step == self._first_step < floor:
            # an earlier process wrote this trace, which lacks these steps
            self.directory.trace.unlink(missing_ok=True)
            self.directory.checkpoints.remove_beyond(self._first_step)  # the history is cut there
        for record in self.recorder.advance(floor):
            if self.directory is None:
                self.history.append(record)
            yield record

    def unload(self, floor: Step) -> None:
        """Unload the answers below `floor`."""
        if self._journal is not None:
            self._journal.unload_before(floor)

    def sync(self) -> Past:
        """Make the records survive a power cut; return their marks, for a checkpoint.

        The timeline survives the death of this process.
        """
        if self._timeline is not None:
            self._timeline.flush()
        return self.recorder.sync(self.seed, self._journal)

    def write_trace(self, *, generated: bool) -> None:
        """Write the trace into the folder, if there is one and a step to write.

        That of a finished run stays: it has dependencies by value, which are not known any more.
        """
        directory, steps = self.directory, self.recorder.next_step
        if directory is None or not steps:
            return
        if steps > self._first_step or not directory.trace.exists():
            directory.write_trace(self.trace(generated=generated))

    def trace(self, *, generated: bool) -> RunTrace:
        """The trace so far; `generated`: no model has answered its calls."""
        meta = trace_meta(self._world, self._names, "generated" if generated else "recorded")
        return self.recorder.trace(meta, self.directory, self._beginning)
