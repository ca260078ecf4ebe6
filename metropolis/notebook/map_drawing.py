"""Maps as SVG of bounded size: walls, named places, and bodies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from metropolis.names import cut_text
from metropolis.notebook.card import WIDTH_PX, escaped

CELLS_MAX = 160
"""The most cells of a drawing along either axis; a cell stands for one or more tiles."""
RUNS_MAX = 5_000
"""The most rectangles of a drawing; with more of them its cells get larger."""
BODIES_MAX = 1_000
LABELS_MAX = 12
LABEL_CHARACTERS_MAX = 24
LEVELS = 4
"""Shades of a cell, by the share of its tiles that are walls."""
# Okabe and Ito's colours, distinct for the colour-blind
FILLS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
_FONT_PX = 10

Bools = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]


def draw_map(
    walls: Bools,
    areas: Int32,
    names: Sequence[str],
    bodies: npt.NDArray[np.floating] | None = None,
) -> str:
    """The SVG of a map.

    `walls` and `areas` are (height, width); `areas` are indices into `names`, of which 0 is none;
    what precedes a colon names the place. `bodies` are (n, 2) positions in tiles.
    """
    places = sorted({name.partition(":")[0] for name in names[1:]})
    rank = {name: number for number, name in enumerate(places, 1)}
    of_area = np.array([0, *(rank[name.partition(":")[0]] for name in names[1:])], np.int32)
    height, width = walls.shape
    tiles = max(1, -(-max(height, width) // CELLS_MAX))
    while True:
        levels, place = (
            _cells(walls, tiles),
            of_area[areas[tiles // 2 :: tiles, tiles // 2 :: tiles]],
        )
        paths = [_path(levels == level) for level in range(1, LEVELS + 1)]
        fills = [
            _path((place > 0) & (place % len(FILLS) == number)) for number in range(len(FILLS))
        ]
        if sum(path.count("M") for path in (*paths, *fills)) <= RUNS_MAX:
            break
        tiles *= 2
    columns, rows = width / tiles, height / tiles
    scale = WIDTH_PX / columns
    parts = [
        f'<path d="{path}" fill="{fill}" fill-opacity=".28"/>'
        for path, fill in zip(fills, FILLS, strict=True)
    ]
    parts += [
        f'<path d="{path}" fill="currentColor" fill-opacity="{0.7 * level / LEVELS:.3g}"/>'
        for level, path in enumerate(paths, 1)
    ]
    if bodies is not None:
        parts.append(_dots(bodies[:BODIES_MAX] / tiles + 0.5 / tiles, 7 / scale))
    parts += _labels(place, places, _FONT_PX / scale)
    return _svg(columns, rows, parts)


def draw_plane(bodies: npt.NDArray[np.floating]) -> str:
    """The SVG of positions, (n, 2), without a map."""
    first, last = bodies.min(axis=0), bodies.max(axis=0)
    size = np.maximum(last - first, 1e-9)
    scale = 100 / size.max()
    shown = (bodies[:BODIES_MAX] - first) * scale
    width, height = np.maximum(size * scale, 10)
    return _svg(width + 4, height + 4, [_dots(shown + 2, 1.2)])


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    shown_px = min(WIDTH_PX, WIDTH_PX * width / height)  # no higher than wide
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" style="width:{shown_px:.0f}px;'
        f'max-width:100%;height:auto;display:block;outline:1px solid rgba(128,128,128,.4)">'
        f"{''.join(parts)}</svg>"
    )


def _cells(walls: Bools, tiles: int) -> npt.NDArray[np.int64]:
    """The shade of each cell of `tiles` x `tiles` tiles, 0 to LEVELS."""
    height, width = walls.shape
    rows, columns = np.arange(0, height, tiles), np.arange(0, width, tiles)
    count = np.add.reduceat(np.add.reduceat(walls, rows, axis=0, dtype=np.int32), columns, axis=1)
    of = np.outer(np.minimum(tiles, height - rows), np.minimum(tiles, width - columns))
    return -(-LEVELS * count.astype(np.int64) // of)


def _path(cells: Bools) -> str:
    """The cells that hold, as rectangles of one row each."""
    edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    row, begin = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    return "".join(
        f"M{x} {y}h{w}v1h-{w}z"
        for x, y, w in zip(begin.tolist(), row.tolist(), (end - begin).tolist(), strict=True)
    )


def _dots(at: npt.NDArray[np.floating], width: float) -> str:
    path = "".join(f"M{x:.4g} {y:.4g}h0" for x, y in at.tolist())
    return (
        f'<path d="{path}" stroke="#d55e00" stroke-width="{width:.3g}" stroke-linecap="round" '
        'fill="none"/>'
    )


def _labels(place: Int32, names: Sequence[str], font: float) -> list[str]:
    """The names of the largest places that do not cover each other."""
    sizes = np.bincount(place.ravel(), minlength=len(names) + 1)[1:]
    boxes: list[tuple[float, float, float, float]] = []
    found: list[str] = []
    for number in np.argsort(-sizes, kind="stable")[: 4 * LABELS_MAX].tolist():
        name = cut_text(names[number], LABEL_CHARACTERS_MAX)
        if not sizes[number] or len(found) == LABELS_MAX:
            break
        rows, columns = np.nonzero(place == number + 1)
        half = 0.3 * font * len(name)
        x = float(np.clip(columns.mean() + 0.5, half, max(half, place.shape[1] - half)))
        above = float(rows.min()) - font / 4  # the baseline; its walls are one cell higher
        y = above - 1 if above - 1 > font else float(rows.max()) + 2 + font
        box = x - half, y - font, x + half, y + font / 4
        if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes):
            continue
        boxes.append(box)
        found.append(
            f'<text x="{x:.4g}" y="{y:.4g}" font-size="{font:.3g}" fill="currentColor" '
            f'text-anchor="middle" font-family="system-ui,sans-serif">{escaped(name)}</text>'
        )
    return found
