"""The figures of a profile, after DroidSpeak's Figures 8, 10, 11 and 16."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metropolis.reuse.plan import Plan
from metropolis.runtime.replays.plots import new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from metropolis.torch_engine.profiling import Profile


def _title(plan: Plan) -> str:
    return f"{plan.receiver} from {plan.sender}'s cache, {plan.layers} layers"


def _references(axes: Axes, plan: Plan) -> None:
    """Draw lines at the qualities of the models without reuse."""
    axes.axhline(plan.receiver_quality, color="black", linestyle="--", linewidth=1,
                 label=f"{plan.receiver}, all layers computed")  # fmt: skip
    if plan.sender_quality is not None:
        axes.axhline(plan.sender_quality, color="black", linestyle=":", linewidth=1,
                     label=plan.sender)  # fmt: skip


def quality_map(profile: Profile) -> Figure:
    """Quality over the first and the last recomputed layer (Fig. 10)."""
    from matplotlib.ticker import MaxNLocator

    plan = profile.plan
    quality = np.full((plan.layers, plan.layers), np.nan)
    for point in profile.points:
        for band in point.recompute:
            quality[band.first, band.last] = point.quality
    figure = new_figure(6.4, 5.2)
    axes = figure.subplots()
    image = axes.imshow(quality, origin="lower", aspect="equal", interpolation="nearest")
    front = [band for point in plan.points for band in point.recompute]
    axes.plot(
        [band.last for band in front], [band.first for band in front],
        linestyle="none", marker="o", markersize=5, markerfacecolor="none",
        markeredgecolor="red", label="Pareto front",
    )  # fmt: skip
    axes.set(xlabel="last recomputed layer", ylabel="first recomputed layer", title=_title(plan))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small", loc="upper left")
    figure.colorbar(image, label=plan.metric)
    return figure


def pareto(profile: Profile) -> Figure:
    """Quality over prefill time (Figs. 11, 13, 15)."""
    plan = profile.plan
    figure = new_figure(8, 4)
    axes = figure.subplots()
    axes.scatter(
        [point.prefill_share for point in profile.points],
        [point.quality for point in profile.points],
        s=12, color="lightgrey", label="bands",
    )  # fmt: skip
    axes.step(
        [point.prefill_share for point in plan.points],
        [point.quality for point in plan.points],
        where="post", marker="o", markersize=4, label="Pareto front",
    )  # fmt: skip
    _references(axes, plan)
    axes.set(
        xlabel=f"prefill time, relative to all layers ({plan.prompt_tokens:,} tokens, measured)",
        ylabel=plan.metric,
        title=_title(plan),
        xlim=(0, 1.02),
        ylim=(0, None),
    )
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def quality_by_layers(profile: Profile) -> Figure:
    """The best quality over the number of reused layers (Fig. 16)."""
    from matplotlib.ticker import MaxNLocator

    plan = profile.plan
    best: dict[int, float] = {}
    for point in profile.points:
        reused = plan.layers - sum(map(len, point.recompute))
        best[reused] = max(point.quality, best.get(reused, 0.0))
    figure = new_figure(8, 4)
    axes = figure.subplots()
    reused_layers = sorted(best)
    axes.plot(
        reused_layers, [best[each] for each in reused_layers],
        marker="o", markersize=4, label="best band",
    )  # fmt: skip
    _references(axes, plan)
    axes.set(xlabel="reused layers", ylabel=plan.metric, title=_title(plan), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def cache_differences(profile: Profile) -> Figure:
    """The difference of the models' caches by layer (Fig. 8)."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4)
    axes = figure.subplots()
    for name, label in (("keys", "keys"), ("values", "values"), ("inputs", "inputs (E)")):
        axes.plot(
            [getattr(each, name) for each in profile.differences],
            marker="o", markersize=4, label=label,
        )  # fmt: skip
    axes.set(
        xlabel="layer", ylabel="norm of the difference\nrelative to the sender's",
        title=_title(profile.plan), ylim=(0, None),
    )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def write_profile_figures(directory: Path, profile: Profile) -> None:
    """Draw every figure, as PNG and SVG."""
    for draw in (quality_map, pareto, quality_by_layers, cache_differences):
        write_figure(directory, draw.__name__, draw(profile))
