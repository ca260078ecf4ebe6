"""`metropolis bench gateway` in small: both paths get the same requests."""

from __future__ import annotations

from metropolis.bench import gateway_attack
from metropolis.bench.gateway import Load, measure


def test_every_request_is_sent_both_ways() -> None:
    runs: list[int] = []
    measured = measure(Load(clients=4, questions_each=3, mean_s=0.05), 2, runs.append)
    assert runs == [1, 1]
    assert (measured.requests, measured.in_flight) == (24, 2)
    assert measured.added_p50_ms > 0
    assert measured.cpu_ms_per_request > 0


def test_attackers_attack_while_clients_are_answered() -> None:
    runs: list[int] = []
    measured = gateway_attack.measure(1, runs.append, 4, 2, slow_senders=10, flood_per_s=50.0)
    assert runs == [1, 1]
    assert measured.flood_per_s > 1
    for run in (measured.undisturbed, measured.attacked):
        assert 0 < run.p50_ms <= run.p99_ms
        assert run.per_s > 0
