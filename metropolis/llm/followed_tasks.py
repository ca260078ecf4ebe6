"""Tasks whose strands record who has waited for them; see `metropolis.llm.call_log`."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from metropolis.llm.call_log import Strand, current_strand, in_strand


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Give each task created in a strand its own strand; an existing task factory is kept."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_create_task)


def _create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any
) -> asyncio.Task[Any]:
    creator = current_strand()
    if creator is None or options.get("context") is not None:
        return asyncio.Task(coroutine, loop=loop, **options)
    strand = creator.fork()
    with in_strand(strand):
        task = FollowedTask(coroutine, strand, loop=loop, **options)
    creator.follow(strand, task)
    asyncio.Task.add_done_callback(task, FollowedTask.end)
    return task


class FollowedTask(asyncio.Task[Any]):
    """A task that records which tasks wait for it.

    They await it, ask whether it is done, or add a callback, as `asyncio.gather` does.
    """

    _watchers: tuple[tuple[Callable[[FollowedTask], object], Strand], ...] = ()
    """Callbacks, and the strands of the tasks that added them."""

    def __init__(self, coroutine: Any, strand: Strand, **options: Any) -> None:
        self.strand = strand  # an eager task runs now
        super().__init__(coroutine, **options)

    def __await__(self) -> Generator[Any, None, Any]:
        waiting = current_strand()
        if waiting is not None:
            waiting.catch_up()
        try:
            return (yield from super().__await__())
        finally:
            if waiting is not None and super().done():
                self._join(waiting)

    __iter__ = __await__

    def done(self) -> bool:
        """See `asyncio.Task`."""
        self._observe()
        return super().done()

    def result(self) -> Any:
        """See `asyncio.Task`."""
        self._observe()
        return super().result()

    def exception(self) -> BaseException | None:
        """See `asyncio.Task`."""
        self._observe()
        return super().exception()

    def add_done_callback(
        self, fn: Callable[[FollowedTask], object], /, *, context: Context | None = None
    ) -> None:
        """See `asyncio.Task`."""
        super().add_done_callback(fn, context=context)
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, asyncio.TaskGroup):
            runs = getattr(owner, "_parent_task", None)
            strand = runs.strand if isinstance(runs, FollowedTask) else None
            self.strand.enter_group(weakref.ref(owner), strand)
        elif not isinstance(owner, asyncio.Task) and (waiting := _running_strand()) is not None:
            waiting.catch_up()
            if super().done():
                self._join(waiting)
            else:
                self._watchers += ((fn, waiting),)

    def remove_done_callback(self, fn: Callable[[FollowedTask], object], /) -> int:
        """See `asyncio.Task`."""
        self._watchers = tuple(watcher for watcher in self._watchers if watcher[0] != fn)
        return super().remove_done_callback(fn)

    def _observe(self) -> None:
        if super().done() and (waiting := _running_strand()) is not None:
            waiting.catch_up()
            self._join(waiting)

    def _join(self, waiting: Strand) -> None:
        """Record that the task of `waiting` has waited for this one, which is done."""
        self.strand.end()
        waiting.join(self.strand)

    def end(self) -> None:
        """Record that the task is done."""
        self.strand.end()
        for _, waiting in self._watchers:
            waiting.join(self.strand)
        self._watchers = ()


def _running_strand() -> Strand | None:
    """The strand of the running task; None in a callback, which waits for nothing."""
    try:
        return None if asyncio.current_task() is None else current_strand()
    except RuntimeError:  # in a thread without event loop
        return None
