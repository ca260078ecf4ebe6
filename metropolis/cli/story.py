"""Lines of a run's story on a terminal."""

from __future__ import annotations

from datetime import timedelta
from shutil import get_terminal_size
from textwrap import fill

from metropolis.cli.terminal import without_controls
from metropolis.types import Step
from metropolis.world.base import World

WIDTH = 80
"""Least columns of what is printed, wherever the output goes."""


def clock(world: World, step: Step) -> str:
    """Return the simulated time at which `step` begins, on later days with the day."""
    time = world.start + timedelta(seconds=step * world.step_s)
    day = (time.date() - world.start.date()).days
    return f"day {day + 1}, {time:%H:%M}" if day else f"{time:%H:%M}"


def story_line(world: World, step: Step, sentence: str, mark: str = "") -> str:
    """Format `sentence` after the simulated time of `step`, wrapped to the terminal's width.

    One that begins with spaces continues the one before, without a time. Lines begin with `mark`.
    """
    first = f"{clock(world, step)}  "
    indent = " " * len(first)
    if sentence.startswith(" "):
        first = indent = indent + "  "
    if mark:
        first, indent = f"{mark} {first}", f"{mark} {indent}"
    return filled(without_controls(sentence.strip()), first, indent)


def filled(text: str, first: str = "", indent: str = "") -> str:
    """Wrap `text` to the terminal's width."""
    width = max(WIDTH // 2, get_terminal_size((WIDTH, 0)).columns)
    return fill(text, width, initial_indent=first, subsequent_indent=indent)
