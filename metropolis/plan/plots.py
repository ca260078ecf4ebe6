"""Gantt charts of GPUs as figures, after SamuLLM's Figures 9, 13 and 15."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metropolis.plan.gantt import Bar, bars_of, nodes_of
from metropolis.plan.schedule import Schedule
from metropolis.runtime.replays.plots import new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 11.0
LETTERS_PER_WIDTH = 120
"""Letters of a label that fit in a bar as wide as the chart."""


def gantt(panels: Mapping[str, Schedule], title: str, gpus: int = 0) -> Figure:
    """A panel for each schedule, one below the other, with the same time axis.

    Every bar is a copy. Hatched: its model is loaded; dotted: the end of a stage.
    """
    import matplotlib
    from matplotlib.patches import Patch

    nodes = nodes_of(tuple(panels.values()))
    palette = matplotlib.color_sequences["tab10" if len(nodes) <= 10 else "tab20"]
    colours = {name: palette[index % len(palette)] for index, name in enumerate(nodes)}
    bars = {name: bars_of(schedule) for name, schedule in panels.items()}
    used = [gpu + 1 for each in bars.values() for bar in each for gpu in bar.all_gpus]
    gpus = max([gpus, *used, 1])
    ends_s = max([*(schedule.ends_s for schedule in panels.values()), 1.0])
    figure = new_figure(WIDTH_IN, 1.0 + len(panels) * (0.6 + 0.22 * gpus))
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for panel, (name, schedule) in zip(axes, panels.items(), strict=True):
        for bar in bars[name]:
            _draw(panel, bar, colours[bar.node], ends_s)
        for stage in schedule.stages[:-1]:
            panel.axvline(stage.ends_s, color="black", linestyle=":", linewidth=0.7)
        panel.set_title(f"{name}: {schedule.ends_s:,.0f} s", fontsize="medium", loc="left")
        panel.set(xlim=(0, ends_s), ylim=(gpus - 0.5, -0.5), ylabel="GPU", yticks=range(gpus))
    axes[-1].set_xlabel("time (s)")
    figure.suptitle(title, fontsize="medium")
    handles = [Patch(color=colours[name], label=name) for name in nodes]
    handles.append(Patch(facecolor="white", edgecolor="grey", hatch="////", label="loading"))
    figure.legend(handles=handles, loc="outside right upper", fontsize="small")
    return figure


def write_gantt(directory: Path, panels: Mapping[str, Schedule], title: str, gpus: int) -> None:
    """Write the chart as gantt.png and gantt.svg."""
    write_figure(directory, "gantt", gantt(panels, title, gpus))


def _draw(axes: Axes, bar: Bar, colour: Any, ends_s: float) -> None:
    loaded_s = min(bar.loaded_s, bar.ends_s)
    for copy in bar.gpus:
        for first, last in _blocks(copy):
            middle, height = (first + last) / 2, last - first + 0.9
            axes.barh(middle, loaded_s - bar.begins_s, height, bar.begins_s, facecolor="white",
                      edgecolor=colour, hatch="////", linewidth=0)  # fmt: skip
            axes.barh(middle, bar.ends_s - loaded_s, height, loaded_s, color=colour)
    if bar.ends_s - loaded_s > len(bar.node) / LETTERS_PER_WIDTH * ends_s:
        first, last = next(_blocks(bar.gpus[len(bar.gpus) // 2]))
        axes.text((loaded_s + bar.ends_s) / 2, (first + last) / 2, bar.node, ha="center",
                  va="center_baseline", fontsize="small", color="white", zorder=3)  # fmt: skip


def _blocks(gpus: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of GPUs side by side."""
    for _, block in groupby(enumerate(gpus), lambda pair: pair[1] - pair[0]):
        numbers = [gpu for _, gpu in block]
        yield numbers[0], numbers[-1]
