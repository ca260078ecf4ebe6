"""The search for bands finds what an exhaustive search finds, with fewer evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.reuse.band_search import best_by_size, first_width, grid, search
from metropolis.reuse.plan import Band


class Pair:
    """Quality as it was found on real pairs: a band must hold certain critical layers, and more
    layers help a little."""

    def __init__(self, layers: int, critical: Band) -> None:
        self.layers, self.critical = layers, critical
        self.evaluated: list[Band] = []

    def quality(self, band: Band) -> float:
        first, last = max(band.first, self.critical.first), min(band.last, self.critical.last)
        covered = max(0, last - first + 1) / len(self.critical)
        return 0.3 + 0.6 * covered + 0.1 * len(band) / self.layers

    def evaluate(self, bands: Sequence[Band]) -> list[float]:
        self.evaluated += bands
        return [self.quality(band) for band in bands]

    def smallest(self, least: float) -> int:
        return min(len(band) for band in grid(self.layers, 1) if self.quality(band) >= least)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    layers = draw(st.integers(1, 40))
    first = draw(st.integers(0, layers - 1))
    return Pair(layers, Band(first, draw(st.integers(first, layers - 1))))


@given(pairs(), st.sampled_from([10, 40, 150]))
def test_the_search_finds_the_critical_layers(pair: Pair, cells_max: int) -> None:
    found = search(pair.layers, pair.evaluate, cells_max)
    assert sorted(found) == sorted(pair.evaluated), "no band is evaluated twice"
    assert Band(0, pair.layers - 1) in found
    assert all(found[band] == pair.quality(band) for band in found)
    least = pair.quality(pair.critical)
    smallest = min(len(band) for band in found if found[band] >= least)
    assert smallest == pair.smallest(least)


@pytest.mark.parametrize(("layers", "most"), [(32, 260), (80, 700)])
def test_fewer_bands_are_evaluated_than_there_are(layers: int, most: int) -> None:
    pair = Pair(layers, Band(layers // 4, layers // 2))
    search(layers, pair.evaluate)
    assert len(pair.evaluated) < most < layers * (layers + 1) / 2


@given(st.integers(1, 60), st.integers(1, 12))
def test_a_grid_has_the_bands_between_its_lines(layers: int, width: int) -> None:
    lines = {*range(0, layers, width), layers}
    bands = grid(layers, width)
    assert len(bands) == len(set(bands)) == len(lines) * (len(lines) - 1) // 2
    assert all({band.first, band.last + 1} <= lines for band in bands)


@given(st.integers(1, 100), st.integers(1, 200))
def test_the_first_grid_is_the_finest_that_is_small_enough(layers: int, cells_max: int) -> None:
    width = first_width(layers, cells_max)
    assert len(grid(layers, width)) <= cells_max or width >= layers
    assert width == 1 or len(grid(layers, width // 2)) > cells_max


@given(st.dictionaries(st.sampled_from(grid(8, 1)), st.floats(0, 1), min_size=1))
def test_the_best_by_size_are_beaten_by_none(quality: dict[Band, float]) -> None:
    front = best_by_size(quality)
    for band in quality:
        assert any(len(b) <= len(band) and quality[b] >= quality[band] for b in front)
    for band in front:
        assert not any(len(b) <= len(band) and quality[b] > quality[band] for b in quality)
