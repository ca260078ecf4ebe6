"""Tasks whose strands record who has waited for them; see `metropolis.llm.call_log`."""

from __future__ import annotations

import asyncio
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
        task = FollowedTask(coroutine, loop=loop, **options)
    task.strand = strand
    creator.follow(strand, task)
    asyncio.Task.add_done_callback(task, lambda _: strand.end())
    return task


class FollowedTask(asyncio.Task[Any]):
    """A task that records that the running task has waited for it."""

    strand: Strand

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from super().__await__())
        finally:
            self._observe()

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
        """See `asyncio.Task`; groups add a callback to their tasks."""
        super().add_done_callback(fn, context=context)
        group = getattr(fn, "__self__", None)
        if isinstance(group, asyncio.TaskGroup):
            # A group of a later Python may lack the attribute; its tasks count as those of none.
            self.strand.enter_group(lambda: getattr(group, "_exiting", True))

    def _observe(self) -> None:
        waiting = current_strand()
        # Callbacks do not wait: a group calls `exception` in one.
        if waiting is not None and super().done() and asyncio.current_task() is not None:
            self.strand.end()
            waiting.join(self.strand)
