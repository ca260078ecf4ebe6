"""Runs of a benchmark on all cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from threading import Thread
from typing import TypeVar

from metropolis.progress import progress_bar
from metropolis.types import MetropolisError

Task = TypeVar("Task")
Found = TypeVar("Found")

_completed: SimpleQueue[int] | None = None
"""In a process of the pool: receives a 1 for each completed run."""


def in_processes(
    measure: Callable[[Task], Iterable[Found]],
    tasks: Sequence[Task],
    runs_per_task: int,
    description: Callable[[Task], str],
) -> Iterator[tuple[Task, list[Found]]]:
    """Each task with the results of its runs, in order.

    `measure`, a function of a module, yields the result of each run of a task. A progress bar
    counts the runs and shows the description of the task that ended last. The processes end with
    this one, however it ends.
    """
    context = get_context("spawn")
    completed: SimpleQueue[int] = context.SimpleQueue()
    reader, writer = context.Pipe(duplex=False)  # the end of the pipe tells the processes to end
    arguments = completed, reader
    with (
        progress_bar(runs_per_task * len(tasks), "runs") as (advance, describe),
        ProcessPoolExecutor(mp_context=context, initializer=_begin, initargs=arguments) as pool,
    ):

        def count() -> None:
            while True:
                advance(completed.get())

        # It is not waited for: a process that is killed may hold the queue for ever.
        Thread(target=count, daemon=True).start()
        try:
            found = pool.map(partial(_measure, measure), tasks)
            for task, results in zip(tasks, found, strict=True):
                describe(description(task))
                yield task, results
        except BrokenProcessPool as error:
            raise MetropolisError(
                "a process of the benchmark has ended before its runs: it was killed, or a script "
                'has called the benchmark outside of `if __name__ == "__main__":`'
            ) from error
        except BaseException:  # the pool would wait for all tasks
            writer.close()
            raise


def _measure(measure: Callable[[Task], Iterable[Found]], task: Task) -> list[Found]:
    assert _completed is not None
    found = []
    for one in measure(task):
        found.append(one)
        _completed.put(1)
    return found


def _begin(completed: SimpleQueue[int], reader: Connection) -> None:
    """Prepare this process, which ends with the pipe, or its parent, even in a task."""
    global _completed  # the only way to hand a queue to a process of a pool
    _completed = completed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, too, and ends this

    def end() -> None:
        with suppress(EOFError):
            reader.recv()  # nothing is sent
        os._exit(1)

    Thread(target=end, daemon=True).start()
