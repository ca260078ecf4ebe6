"""Bars of a Gantt chart of GPUs, and the chart as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase, ascii_uppercase

from rich.text import Text

from metropolis.plan.placement import Gpus
from metropolis.plan.schedule import Schedule

COLOURS = (
    *("bright_blue", "dark_orange", "green3", "red3", "medium_purple", "gold3"),
    *("deep_pink3", "turquoise2", "chartreuse3", "salmon1", "orchid", "grey62"),
)
LETTERS = ascii_uppercase + ascii_lowercase
LOADING, IDLE = "░", "·"
TICK_COLUMNS = 16
"""Minimum distance of two marks on the time axis, in columns."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A node on GPUs; times in seconds."""

    node: str
    gpus: Gpus
    begins_s: float
    loaded_s: float
    """Time at which the model is loaded."""
    ends_s: float

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """The GPUs of all copies, ascending."""
        return tuple(sorted(gpu for copy in self.gpus for gpu in copy))


def bars_of(schedule: Schedule) -> list[Bar]:
    """The bars of a schedule; a node that continues in the next stage is one bar."""
    found: list[Bar] = []
    running: dict[str, int] = {}
    """The index of each running node's bar."""
    for stage in schedule.stages:
        before, running = running, {}
        for name, node in stage.nodes.items():
            index = before.get(name)
            if index is not None and not node.loads and found[index].gpus == node.gpus:
                found[index] = replace(found[index], ends_s=stage.ends_s)
            else:
                index = len(found)
                loaded_s = max(node.loaded_s, stage.begins_s)
                found.append(Bar(name, node.gpus, stage.begins_s, loaded_s, stage.ends_s))
            running[name] = index
    return found


def nodes_of(schedules: Sequence[Schedule]) -> list[str]:
    """The nodes of schedules, each once, in order of their beginning."""
    return list(dict.fromkeys(bar.node for each in schedules for bar in bars_of(each)))


def gantt_text(
    schedule: Schedule, nodes: Sequence[str], width: int, gpus: int, ends_s: float
) -> Text:
    """A line for each GPU, time to the right, and a time axis.

    Args:
        nodes: all nodes; the first has the letter A.
        width: columns of a line.
        gpus: GPUs of the machine; more if the schedule uses more.
        ends_s: the end of the time axis; later if the schedule ends later.
    """
    bars = bars_of(schedule)
    gpus = max([gpus, *(gpu + 1 for bar in bars for gpu in bar.all_gpus)])
    ends_s = max(ends_s, schedule.ends_s)
    columns = max(1, width - len(_margin(0, gpus)) - 1)
    text = Text(no_wrap=True)
    for gpu in range(gpus):
        own = [bar for bar in bars if gpu in bar.all_gpus]
        text.append(_margin(gpu, gpus))
        for column in range(columns):
            text.append(*_cell(own, nodes, (column + 0.5) / columns * ends_s))
        text.append("│\n")
    text.append(" " * len(_margin(0, gpus)) + _axis(columns, ends_s))
    return text


def legend(nodes: Sequence[str], width: int) -> Text:
    """The letters of the nodes, in lines of `width` columns."""
    entries = [(_letter(index), _style(index), name) for index, name in enumerate(nodes)]
    text, column = Text(), 0
    for mark, style, name in (*entries, (LOADING, "", "loading"), (IDLE, "", "idle")):
        size = len(f"   {mark} {name}")
        if column + size > width:
            column = 0
            text.append("\n")
        text.append("   " if column else "")
        text.append(mark, style)
        text.append(f" {name}")
        column += size
    return text


def _cell(bars: Sequence[Bar], nodes: Sequence[str], time_s: float) -> tuple[str, str]:
    """The character at a time, and its style."""
    for bar in bars:
        if bar.begins_s <= time_s < bar.ends_s:
            index = nodes.index(bar.node)
            if time_s < bar.loaded_s:
                return LOADING, COLOURS[index % len(COLOURS)]
            return _letter(index), _style(index)
    return IDLE, "dim"


def _letter(index: int) -> str:
    return LETTERS[index] if index < len(LETTERS) else "#"


def _style(index: int) -> str:
    return f"black on {COLOURS[index % len(COLOURS)]}"


def _margin(gpu: int, gpus: int) -> str:
    return f"GPU {gpu:{len(str(max(gpus - 1, 0)))}} │"


def _axis(columns: int, ends_s: float) -> str:
    """Multiples of a decimal step, in seconds, each in the column of its time."""
    least_s = max(ends_s * TICK_COLUMNS / columns, 1e-3)
    power = 10.0 ** math.floor(math.log10(least_s))
    step_s = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least_s * 0.999)
    line = ""
    for mark in range(int(ends_s / step_s) + 1):
        column = int(mark * step_s / max(ends_s, 1e-9) * columns)
        time = f"{mark * step_s:,g} s"
        if column + len(time) <= columns + 1:
            line = f"{line:<{column}}{time}"
    return line
