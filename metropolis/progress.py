"""A progress bar with rate and time left; hidden when standard error is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text()
        if speed < 1:
            return Text(f"{60 * speed:.2g} {self.unit}/min")
        return Text(f"{speed:,.0f} {self.unit}/s")


class _TimeLeft(ProgressColumn):
    def __init__(self, time_left_s: Callable[[], float]) -> None:
        super().__init__()
        self._time_left_s = time_left_s

    def render(self, task: Task) -> Text:  # noqa: ARG002
        return Text(f"{timedelta(seconds=round(self._time_left_s()))}", "progress.remaining")


@contextmanager
def progress_bar(
    total: int,
    unit: str,
    *,
    quiet: bool = False,
    time_left_s: Callable[[], float] | None = None,
) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Show progress towards `total` units of `unit`; yields (advance, describe).

    `time_left_s` estimates the time left, in place of the rate.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(unit),
        TimeRemainingColumn() if time_left_s is None else _TimeLeft(time_left_s),
        console=console,
        disable=quiet or not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # leave output to a file alone
        transient=True,
    ) as progress:
        task = progress.add_task("", total=total)
        yield (
            lambda n: progress.advance(task, n),
            lambda text: progress.update(task, description=text),
        )
