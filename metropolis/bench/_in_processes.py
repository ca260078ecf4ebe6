"""Runs of a benchmark on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from metropolis.progress import progress_bar

Task = TypeVar("Task")
Found = TypeVar("Found")


def in_processes(
    measure: Callable[[Task], Found],
    tasks: Sequence[Task],
    unit: str,
    description: Callable[[Task], str],
) -> Iterator[tuple[Task, Found]]:
    """Each task with what `measure`, a function of a module, returns for it, in order.

    A progress bar counts them in `unit` and shows the description of the last one. The processes
    end with this one, however it ends.
    """
    with (
        progress_bar(len(tasks), unit) as (advance, describe),
        ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_end_with_parent) as pool,
    ):
        for task, found in zip(tasks, pool.map(measure, tasks), strict=True):
            describe(description(task))
            yield task, found
            advance(1)


def _end_with_parent() -> None:
    """End this process with its parent, which may be killed while a task runs."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()
