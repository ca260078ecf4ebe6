"""The share of pairs in the right order (Kairos, section 7.4), counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.policy.kairos.accuracy import ordering_accuracy

# Remaining latencies: plan of p 5 s, answer of p 3, plan of q 3, answer of q 1.
SERVED = [
    ServedRequest(QueuedRequest(0, "p", "plan", 1, 0.0, 0.0), 0, 0.0, 2.0, 1),
    ServedRequest(QueuedRequest(1, "p", "answer", 1, 2.0, 2.0), 0, 2.0, 5.0, 1),
    ServedRequest(QueuedRequest(2, "q", "plan", 1, 0.0, 0.0), 0, 0.0, 2.0, 1),
    ServedRequest(QueuedRequest(3, "q", "answer", 1, 2.0, 2.0), 0, 2.0, 3.0, 1),
]


class Ranked(Fcfs):
    """Ranks requests by number."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__()
        self._ranks = ranks

    def rank(self, request: QueuedRequest) -> int:
        return self._ranks[request.id]


@pytest.mark.parametrize(
    ("ranks", "accuracy"),
    [
        ((1, 0, 1, 0), 1.0),
        ((0, 1, 0, 1), 0.0),
        ((0, 0, 0, 0), 0.5),
        # The plan of p precedes its answer, which is wrong, and the answer of q both plans. A pair
        # of one function does not count, nor do 3 and 3; by request: 1/2, 0, 1 and 1.
        ((1, 2, 3, 0), (0.5 + 0 + 1 + 1) / 4),
    ],
)
def test_pairs_of_different_functions_are_compared(ranks: Sequence[int], accuracy: float) -> None:
    assert ordering_accuracy(SERVED, Ranked(ranks)) == pytest.approx(accuracy)
