"""Answers bought from the model, and those bought twice, from the log of the stub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from metropolis.bench.stub_server import ANSWERED, ASKED

LAG_S = 0.25
"""Maximum delay, by sockets and busy processors, between an answer and its storage."""


@dataclass
class ExecutedKill:
    """An executed kill, in monotonic seconds: calls in flight then may be lost."""

    victim: str
    began_s: float
    pids: list[int]
    """Processes of the workers that end with it."""
    ended_s: float = inf
    """When all of them had ended and the store had restarted."""


@dataclass(frozen=True)
class Purchases:
    """The purchases of one run."""

    bought: int
    unique: int
    in_flight: int
    """Calls sent and not answered when kills began, over all kills."""
    beyond: int
    """Calls bought again although none was in flight at a kill."""


def calls_of(log: Iterable[str]) -> dict[int, list[tuple[float, float]]]:
    """Return the times when each request was sent and answered; inf if never answered."""
    calls: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for line in log:
        what, at, key = line.split()
        times = calls[int(key)]
        if what == ASKED:
            times.append((float(at), inf))
        elif what == ANSWERED:  # the oldest: equal requests take equally long
            waiting = next(i for i, (_, answered_s) in enumerate(times) if answered_s == inf)
            times[waiting] = times[waiting][0], float(at)
    return calls


def purchases_of(log: Path, kills: Sequence[ExecutedKill]) -> Purchases:
    """Count the purchases in `log`. Raises OSError if there is no log."""
    calls = calls_of(log.read_text().splitlines())
    all_times = [times for bought in calls.values() for times in bought]
    return Purchases(
        bought=len(all_times),
        unique=len(calls),
        in_flight=sum(
            asked_s <= kill.began_s < answered_s
            for kill in kills
            for asked_s, answered_s in all_times
        ),
        beyond=sum(
            not any(_in_flight(times, kill) for kill in kills)
            for bought in calls.values()
            for times in bought[:-1]
        ),
    )


def _in_flight(times: tuple[float, float], kill: ExecutedKill) -> bool:
    """Return whether the kill may have lost the answer before it was stored."""
    asked_s, answered_s = times
    return asked_s - LAG_S <= kill.ended_s and kill.began_s <= answered_s + LAG_S
