"""The pump of a live run: commands of the controller become clusters at work, their ends commits.

Everything here happens on one event loop; only plain agents compute elsewhere.
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
    """Runs the clusters that `controller` lets run."""

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
        """What ended the run before its time."""
        self.newest_step = controller.floor
        """The greatest step that anybody has come to."""
        self.seen_floor = controller.floor
        """The floor that who drives this engine has seen, and may still read the state at."""

    @property
    def floor(self) -> Step:
        """The smallest step any agent still has to run."""
        return self._controller.floor

    def start(self) -> None:
        """Begin; to be called on the event loop, once."""
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
        """End the run for `reason`, unless it has ended; to be called on the event loop."""
        self.failure = self.failure or reason
        self._changed.set()

    def passed(self) -> None:
        """Everything below the floor is recorded: nobody reads it any more."""
        self.seen_floor = self._controller.floor
        self._state.drop_events(self.seen_floor)

    async def stop(self) -> None:
        """Cancel what is at work; nothing of it is committed."""
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
                task.exception()  # the first failure is the one to tell
            return
        try:
            self._commit(task.result())
        except asyncio.CancelledError:  # not ours: the run has not ended
            self.end(
                MetropolisError(
                    f"step {dispatch.step}, agent {self._names[dispatch.agents[0]]!r} or its "
                    "cluster: a task was cancelled from within; code that cancels a "
                    "task should catch its CancelledError"
                )
            )
        except BaseException as failure:  # noqa: BLE001 -- kept, and raised where the run is awaited
            self.end(alone(failure))
        self._changed.set()

    def _commit(self, outcome: Outcome) -> None:
        self._state.commit(outcome.step, outcome.writes, outcome.events, self.seen_floor)
        positions = []
        for agent in outcome.agents:
            body = self._state.entity(self._names[agent], outcome.step + 1)
            assert body is not None
            positions.append(body.position)
        self.newest_step = max(self.newest_step, outcome.step + 1)
        self._on_commit(outcome)
        self._dispatch(self._controller.handle([Commit(outcome.agents, tuple(positions))]))
