"""Runs of a benchmark on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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

    A progress bar counts them in `unit` and shows the description of the last one.
    """
    with (
        progress_bar(len(tasks), unit) as (advance, describe),
        ProcessPoolExecutor(mp_context=get_context("spawn")) as pool,
    ):
        for task, found in zip(tasks, pool.map(measure, tasks), strict=True):
            describe(description(task))
            yield task, found
            advance(1)
