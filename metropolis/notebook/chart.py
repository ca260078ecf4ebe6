"""A chart of a quantity over time as SVG of bounded size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.notebook.card import WIDTH_PX

BINS = 240
HEIGHT_PX = 56
_COLOUR = "#3d9bd1"


def draw_chart(values: npt.NDArray[np.number]) -> str:
    """The SVG of `values` at equal distances; of more than BINS, the largest of each bin."""
    if len(values) > BINS:
        values = np.maximum.reduceat(values, np.linspace(0, len(values), BINS, False).astype(int))
    highest = max(1.0, float(values.max(initial=0)))
    points = "".join(
        f"L{at} {HEIGHT_PX * (1 - value / highest):.1f}h1"
        for at, value in enumerate(values.tolist())
    )
    return (
        f'<svg viewBox="0 0 {max(1, len(values))} {HEIGHT_PX}" preserveAspectRatio="none" '
        f'role="img" style="width:{WIDTH_PX}px;max-width:100%;height:{HEIGHT_PX}px;display:block;'
        f'border-bottom:1px solid rgba(128,128,128,.6)">'
        f'<path d="M0 {HEIGHT_PX}{points}V{HEIGHT_PX}z" '
        f'fill="{_COLOUR}" fill-opacity=".75"/></svg>'
    )
