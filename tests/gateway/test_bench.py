"""`metropolis bench gateway`, small: both ways are asked the same."""

from __future__ import annotations

from metropolis.bench.gateway import Load, measure


def test_every_question_is_asked_both_ways() -> None:
    runs: list[int] = []
    measured = measure(Load(clients=4, questions_each=3, mean_s=0.05), 2, runs.append)
    assert runs == [1, 1]
    assert (measured.requests, measured.in_flight) == (24, 2)
    assert measured.added_p50_ms > 0
    assert measured.cpu_ms_per_request > 0
