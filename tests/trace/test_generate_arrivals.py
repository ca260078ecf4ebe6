"""Arrivals like those of Azure's conversations: their burstiness over seconds and minutes."""

from __future__ import annotations

import numpy as np
import pytest

from metropolis.trace.generate.arrivals import drifting_arrivals_s

ARRIVALS, PER_S = 19_366, 5.53
"""Number of arrivals and mean rate of the trace that is imitated."""


def test_gaps_and_counts_are_as_bursty_as_those_of_the_trace() -> None:
    variations, ratios = [], []
    for seed in range(30):
        arrivals_s = np.array(drifting_arrivals_s(ARRIVALS, PER_S, seed))
        gaps_s = np.diff(arrivals_s)
        variations.append(gaps_s.std() / gaps_s.mean())
        counts = np.bincount((arrivals_s // 60).astype(int))[: int(arrivals_s[-1] // 60)]
        ratios.append(counts.var() / counts.mean())
    assert np.mean(variations) == pytest.approx(1.094, abs=0.01)
    assert np.median(ratios) == pytest.approx(16.1, abs=2)  # the mean is 18, single seeds 7 to 44


@pytest.mark.parametrize("count", [0, 1, 500])
def test_the_rate_is_as_asked_and_scales_the_same_gaps(count: int) -> None:
    slow, fast = (drifting_arrivals_s(count, per_s, 1) for per_s in (0.5, 4.0))
    assert len(slow) == count
    assert slow == sorted(slow)
    assert [8 * arrival_s for arrival_s in fast] == pytest.approx(slow)
    if count:
        assert slow[-1] == pytest.approx(count / 0.5)
