"""What was bought of the model, and which of it twice, told from the log of its stand-in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from metropolis.bench.stub_server import ANSWERED, ASKED

LAG_S = 0.25
"""What sockets and busy processors may lie between an answer and its being kept in the store."""


@dataclass
class Struck:
    """A kill as it happened, in monotonic seconds: what was in flight then may be lost."""

    victim: str
    began_s: float
    pids: list[int]
    """Of the workers whose end it brings."""
    ended_s: float = inf
    """When all of them had ended, and the store was back."""


@dataclass(frozen=True)
class Purchases:
    """Of one run."""

    bought: int
    unique: int
    in_flight: int
    """Calls that had been asked and not answered when kills began, all kills together."""
    beyond: int
    """Bought again although no kill found them in flight."""


def calls_of(log: Iterable[str]) -> dict[int, list[tuple[float, float]]]:
    """When each request was asked and answered, every time it was bought; never answered: inf."""
    calls: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for line in log:
        what, at, key = line.split()
        times = calls[int(key)]
        if what == ASKED:
            times.append((float(at), inf))
        elif what == ANSWERED:  # the eldest that waits: equal requests take equally long
            waiting = next(i for i, (_, answered_s) in enumerate(times) if answered_s == inf)
            times[waiting] = times[waiting][0], float(at)
    return calls


def purchases_of(log: Path, kills: Sequence[Struck]) -> Purchases:
    """Raises OSError when there is no log."""
    calls = calls_of(log.read_text().splitlines())
    everything = [times for bought in calls.values() for times in bought]
    return Purchases(
        bought=len(everything),
        unique=len(calls),
        in_flight=sum(
            asked_s <= kill.began_s < answered_s
            for kill in kills
            for asked_s, answered_s in everything
        ),
        beyond=sum(
            not any(_in_flight(times, kill) for kill in kills)
            for bought in calls.values()
            for times in bought[:-1]
        ),
    )


def _in_flight(times: tuple[float, float], kill: Struck) -> bool:
    """Whether the kill may have taken the answer before it was kept."""
    asked_s, answered_s = times
    return asked_s - LAG_S <= kill.ended_s and kill.began_s <= answered_s + LAG_S
