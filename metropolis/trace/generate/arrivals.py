"""Arrival times like those of conversations in a production trace (Patel et al. 2024).

The trace is Azure's of 2023: 19,366 requests in an hour. It is matched in two statistics: the
coefficient of variation of its gaps is 1.094, and counts of 60 s have a variance of 16.1 times
their mean (here 18, median 17; single runs 7 to 44). Gamma-distributed gaps alone give the first,
and 1.2 for the second: its rate drifts.
"""

from __future__ import annotations

from itertools import accumulate
from math import exp, sqrt
from random import Random

SHAPE = 0.92
"""Shape of the gamma-distributed gaps at a constant rate."""
RATE_SPREAD = 0.27
"""Standard deviation of the logarithm of the rate."""
RATE_MEMORY = 2200
"""Arrivals after which the autocorrelation of the logarithm of the rate is 1/e."""


def drifting_arrivals_s(count: int, per_s: float, seed: int) -> list[float]:
    """`count` ascending times, from 0 on, at a mean rate of exactly `per_s`: a Cox process.

    The logarithm of the rate is an Ornstein-Uhlenbeck process of arrivals, not of time: a higher
    `per_s` scales the trace, as in Kairos (§2.2.1, §7.1).
    """
    draw = Random(f"{seed} arrivals")
    keep = exp(-1 / RATE_MEMORY)
    log_rate = draw.gauss(0, 1)
    gaps = []
    for _ in range(count):
        gaps.append(draw.gammavariate(SHAPE, 1 / SHAPE) * exp(-RATE_SPREAD * log_rate))
        log_rate = keep * log_rate + sqrt(1 - keep * keep) * draw.gauss(0, 1)
    scale = count / per_s / sum(gaps) if gaps else 1.0
    return list(accumulate(scale * gap for gap in gaps))
