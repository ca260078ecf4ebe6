"""Main loop of a live run in memory: runs dispatched clusters and commits their outcomes.

Everything here runs on one event loop; only plain agents run in other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metropolis.controller.base import Controller
from metropolis.store.outcome import Outcome
from metropolis.types import Commit, Dispatch, MetropolisError, Step
from metropolis.workers.local import LocalWorker
from metropolis.world.mistakes import alone
from metropolis.world.state import State

OnCommit = Callable[[Outcome], None]


class Engine:
    """Runs the clusters that `controller` dispatches."""

    def __init__(
        self,
        controller: Controller,
        worker: LocalWorker,
        state: State,
        names: list[str],
        on_commit: OnCommit,
    ) -> None:
        self._controller, self._worker, self._state = controller, worker, state
        self._names, self._on_commit = names, on_commit
        self._tasks: dict[asyncio.Task[Outcome], Dispatch] = {}
        self._changed = asyncio.Event()
        self.failure: BaseException | None = None
        """The reason for a premature end of the run."""
        self.newest_step = controller.floor
        """The greatest step that an agent has reached."""
        self.seen_floor = controller.floor
        """The floor that the caller has seen; it may still read the state there."""

    @property
    def floor(self) -> Step:
        """The smallest step any agent still has to run."""
        return self._controller.floor

    def start(self) -> None:
        """Start the run; call it once, on the event loop."""
        self._dispatch(self._controller.start())

    async def advance(self) -> None:
        """Wait until the floor has risen, everything is finished, or something failed."""
        before = self._controller.floor
        while (
            self.failure is None
            and self._controller.floor == before
            and not self._controller.finished
        ):
            self._changed.clear()
            await self._changed.wait()

    def end(self, reason: BaseException) -> None:
        """End the run for `reason`, unless it has ended; call it on the event loop."""
        self.failure = self.failure or reason
        self._changed.set()

    def passed(self) -> None:
        """Drop everything below the floor: it is recorded, and not read any more."""
        self.seen_floor = self._controller.floor
        self._state.collect(self.seen_floor)

    async def stop(self) -> None:
        """Cancel the running clusters; they commit nothing."""
        self.end(asyncio.CancelledError())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _dispatch(self, ready: list[Dispatch]) -> None:
        for dispatch in ready:
            task = asyncio.get_running_loop().create_task(self._worker.run(dispatch, self._state))
            self._tasks[task] = dispatch
            task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Outcome]) -> None:
        dispatch = self._tasks.pop(task)
        if self.failure is not None:
            if not task.cancelled():
                task.exception()  # report the first failure only
            return
        try:
            self._commit(task.result())
        except asyncio.CancelledError:  # not our cancellation: the run has not ended
            self.end(
                MetropolisError(
                    f"step {dispatch.step}, agent {self._names[dispatch.agents[0]]!r} or its "
                    "cluster: a task was cancelled from within; code that cancels a "
                    "task should catch its CancelledError"
                )
            )
        except BaseException as failure:  # noqa: BLE001 -- raised in the awaiting caller
            self.end(alone(failure))
        self._changed.set()

    def _commit(self, outcome: Outcome) -> None:
        self._state.commit(outcome.step, outcome.writes, outcome.events)
        positions = []
        for agent in outcome.agents:
            body = self._state.entity(self._names[agent], outcome.step + 1)
            assert body is not None
            positions.append(body.position)
        self.newest_step = max(self.newest_step, outcome.step + 1)
        self._on_commit(outcome)
        self._dispatch(self._controller.handle([Commit(outcome.agents, tuple(positions))]))
