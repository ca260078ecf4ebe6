"""Answers bought from the model, and those bought twice, from the log of the stub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from metropolis.bench.stub_server import ANSWERED, ASKED, DROPPED

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
    """The purchases of one run, without the calls that the run itself has cancelled."""

    bought: int
    unique: int
    in_flight: int
    """Calls sent and not answered when kills began, over all kills."""
    beyond: int
    """Calls bought again although none was in flight at a kill, nor was it cancelled."""
    cancelled: int
    """Calls cancelled although no kill was near."""


@dataclass
class Call:
    """A call, in monotonic seconds."""

    asked_s: float
    ended_s: float = inf
    answered: bool = False
    dropped: bool = False
    """The connection was closed right after the answer, as when a request is cancelled."""


def calls_of(log: Iterable[str]) -> dict[int, list[Call]]:
    """Return the calls of each request."""
    calls: dict[int, list[Call]] = defaultdict(list)
    for line in log:
        what, at, key = line.split()
        if what == ASKED:
            calls[int(key)].append(Call(float(at)))
        elif what == DROPPED:
            # The last answered one: an equal request may have followed over another connection.
            next(call for call in reversed(calls[int(key)]) if call.answered).dropped = True
        else:  # the oldest: equal requests take equally long
            call = next(call for call in calls[int(key)] if call.ended_s == inf)
            call.ended_s, call.answered = float(at), what == ANSWERED
    return calls


def purchases_of(log: Path, kills: Sequence[ExecutedKill]) -> Purchases:
    """Count the purchases in `log`. Raises OSError if there is no log."""
    calls = calls_of(log.read_text().splitlines())
    bought = {
        key: [call for call in of if call.answered or _was_in_flight(call, kills)]
        for key, of in calls.items()
    }
    return Purchases(
        bought=sum(map(len, bought.values())),
        unique=sum(map(bool, bought.values())),
        in_flight=sum(
            call.asked_s <= kill.began_s < call.ended_s
            for kill in kills
            for of in calls.values()
            for call in of
        ),
        beyond=sum(
            not call.dropped and not _was_in_flight(call, kills)
            for of in bought.values()
            for call in of[:-1]
        ),
        cancelled=sum(map(len, calls.values())) - sum(map(len, bought.values())),
    )


def _was_in_flight(call: Call, kills: Sequence[ExecutedKill]) -> bool:
    """Return whether a kill may have lost the answer before it was stored."""
    return any(
        call.asked_s - LAG_S <= kill.ended_s and kill.began_s <= call.ended_s + LAG_S
        for kill in kills
    )
