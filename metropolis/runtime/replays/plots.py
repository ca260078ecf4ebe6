"""The figures of a replay, after AI Metropolis' Figures 1, 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metropolis.durable import write_atomically
from metropolis.names import counted
from metropolis.runtime.replays.modes import mode_of
from metropolis.runtime.replays.replay import ReplayResult
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SNIPPET_SIM_S = 180.0
"""Duration of the excerpt in the Gantt figure."""
FORMATS = ("png", "svg")


def prepare_figures(directory: Path) -> None:
    """Check, before any long work, that figures can be drawn and written to `directory`."""
    try:
        import_module("matplotlib.figure")
    except ImportError:
        raise MetropolisError("figures need matplotlib: pip install 'metropolis[plot]'") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MetropolisError(
            f"{directory}: cannot hold figures ({error.strerror}); it should be a folder"
        ) from error


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure whose parts do not overlap."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def write_figure(directory: Path, name: str, figure: Figure) -> list[Path]:
    """Write the figure as PNG and SVG; return the files. Raises UnwritableError."""
    written = []
    for suffix in FORMATS:
        path = directory / f"{name}.{suffix}"
        content = BytesIO()
        figure.savefig(content, format=suffix, dpi=150)
        write_atomically(path, content.getvalue(), 0o666)
        written.append(path)
    return written


def _colours(trace: Trace) -> dict[int, Any]:
    """A colour for each function, assigned by name, the same in every figure; limited in number."""
    import matplotlib

    by_name = sorted(range(len(trace.calls.functions)), key=trace.calls.functions.__getitem__)
    return dict(zip(by_name, matplotlib.color_sequences["tab20"], strict=False))


def gantt(trace: Trace, results: Sequence[ReplayResult]) -> Figure:
    """Every agent's calls in an excerpt of each result, coloured by function (Fig. 1).

    Dashed lines mark the ends of lockstep's steps. Each panel spans SNIPPET_SIM_S from the median
    call of its result on, or from earlier on if that ends before.
    """
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(12, 0.9 + len(results) * (0.8 + 0.11 * trace.agents))
    panels = figure.subplots(len(results), 1, squeeze=False)[:, 0]
    calls = trace.calls
    colours = _colours(trace)
    seen: set[int] = set()
    for panel, result in zip(panels, results, strict=True):
        middle_sim_s = float(np.median(result.sent_sim_s))
        begin = max(0.0, min(middle_sim_s, result.makespan_sim_s - SNIPPET_SIM_S))
        end = min(begin + SNIPPET_SIM_S, result.makespan_sim_s)
        visible = (result.completed_sim_s > begin) & (result.sent_sim_s < end)
        for function in np.unique(calls.function[visible]).tolist():
            seen.add(function)
            own = visible & (calls.function == function)
            panel.barh(
                calls.agent[own],
                result.completed_sim_s[own] - result.sent_sim_s[own],
                left=result.sent_sim_s[own],
                height=0.8,
                color=colours.get(function, "lightgrey"),
            )
        if result.mode == "lockstep":
            committed = result.committed_sim_s.reshape(trace.steps, trace.agents)
            ends = np.unique(committed.max(axis=1))
            for line in ends[(ends > begin) & (ends < end)]:
                panel.axvline(line, color="black", linestyle="--", linewidth=0.5)
        panel.set(
            title=f"{result.mode}, {result.fleet}, {trace.meta.name}, hours {result.hours}",
            xlim=(begin, end),
            ylim=(trace.agents - 0.5, -0.5),
            ylabel="agent",
        )
        panel.yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("simulated time (sim_s)")
    handles = [
        Patch(color=colour, label=calls.functions[function])
        for function, colour in colours.items()
        if function in seen
    ]
    if seen - set(colours):
        handles.append(Patch(color="lightgrey", label="other"))
    figure.legend(handles=handles, loc="outside right upper", fontsize="small")
    return figure


def calls_per_hour(trace: Trace) -> Figure:
    """LLM calls in every simulated hour (Fig. 4c)."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 3.5)
    axes = figure.subplots()
    hour = [int(trace.hour_of_step(step)) for step in trace.calls.step.tolist()]
    first, last = int(trace.hour_of_step(0)), int(trace.hour_of_step(trace.steps - 1))
    counts = np.bincount(np.array(hour, dtype=np.int64) - first, minlength=last - first + 1)
    axes.bar(np.arange(first, last + 1) + 0.5, counts, width=0.9)
    axes.set(
        xlabel="hour of the simulated day",
        ylabel="LLM calls",
        title=f"{trace.meta.name}: {trace.agents} agents, {len(trace.calls):,} calls "
        f"({trace.meta.calls_origin})",
        xlim=(first, last + 1),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def completion_times(results: Sequence[ReplayResult]) -> Figure:
    """Makespan of every mode, grouped by agents and instances (Figs. 4a, 4b, 5, 6)."""
    groups = list(dict.fromkeys((r.hours, r.agents, r.instances, r.policy) for r in results))
    modes = list(dict.fromkeys(r.mode for r in results))
    figure = new_figure(min(5 + 1.3 * len(groups), 24), 4.5)
    axes = figure.subplots()
    width = 0.85 / len(modes)
    for index, mode in enumerate(modes):
        at, height = [], []
        for group_index, group in enumerate(groups):
            for r in results:
                if r.mode == mode and (r.hours, r.agents, r.instances, r.policy) == group:
                    at.append(group_index + (index - (len(modes) - 1) / 2) * width)
                    height.append(r.makespan_sim_s)
        axes.bar(at, height, width=width, label=mode + ("*" if mode_of(mode).is_bound else ""))
    axes.set_xticks(
        range(len(groups)),
        [
            f"hours {hours}\n{counted(agents, 'agent')}\n{counted(instances, 'instance')}\n"
            f"policy {policy}"
            for hours, agents, instances, policy in groups
        ],
    )
    axes.set(
        ylabel="makespan (sim_s, simulated)",
        title=f"Completion times, {results[0].profile} (* a bound, not an execution)",
    )
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def write_figures(
    directory: Path, trace: Trace, windows: Sequence[tuple[Trace, Sequence[ReplayResult]]]
) -> list[Path]:
    """Draw every figure the results allow, as PNG and SVG; return the written files."""
    results = [result for _, of_window in windows for result in of_window]
    figures = {
        "calls_per_hour": calls_per_hour(trace),
        "completion_times": completion_times(results),
    }
    for window, of_window in windows:
        of_rules = ("lockstep", "conservative", "versioned")
        timed = [r for r in of_window if mode_of(r.mode).name in of_rules]
        same_setting = [
            r for r in timed if (r.instances, r.policy) == (timed[0].instances, timed[0].policy)
        ]
        if same_setting and len(window.calls):
            name = "gantt" if len(windows) == 1 else f"gantt_{timed[0].hours}_{window.agents}"
            figures[name] = gantt(window, same_setting)
    return [
        path for name, figure in figures.items() for path in write_figure(directory, name, figure)
    ]
