"""Conversations between agents that are awake and meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metropolis.trace.generate.calibration import ConversationFit
from metropolis.trace.generate.proximity import Meetings
from metropolis.trace.schema import Int64


class Conversation(NamedTuple):
    """The dialogue takes place in the initiator's step `first`; both are occupied until `last`."""

    first: int
    last: int
    initiator: int
    partner: int
    utterances: int


@dataclass
class _Diary:
    """The conversations so far."""

    fit: ConversationFit
    busy: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    together: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def free(self, step: int, pair: tuple[int, int]) -> bool:
        """Whether neither agent is in a conversation."""
        return not any(_overlaps(self.busy.get(agent, []), step, step + 1) for agent in pair)

    def enter(self, first: int, last: int, pair: tuple[int, int]) -> bool:
        """Add a conversation unless an agent is occupied, or the pair talked recently."""
        calendars = [self.busy.setdefault(agent, []) for agent in pair]
        talks = self.together.setdefault(pair, [])
        rest = self.fit.cooldown_steps
        if any(_overlaps(calendar, first, last) for calendar in calendars) or _overlaps(
            talks, first - rest, last + rest
        ):
            return False
        for calendar in (*calendars, talks):
            calendar.append((first, last))
        return True


def _overlaps(calendar: list[tuple[int, int]], first: int, last: int) -> bool:
    return any(first < end and start < last for start, end in calendar)


def hold(
    met: Meetings,
    expected: npt.NDArray[np.float64],
    hour: Int64,
    rng: np.random.Generator,
    fit: ConversationFit,
) -> tuple[list[Conversation], list[tuple[int, int]]]:
    """Conversations, sorted by first step, and refused ones as (step, agent).

    `met` holds the meetings of agents that are awake. `expected` is the mean number of
    conversations per hour of the trace, and `hour` the hour of each step. If too few agents meet,
    there are fewer conversations.
    """
    indices = np.flatnonzero(
        ((met.step - met.first) % fit.candidate_every_steps == 0)
        & (met.last - met.step >= fit.together_steps)
    )
    # Every agent in company talks equally often, so a pair in a crowd talks less often.
    indices = indices[np.argsort(rng.exponential(_crowd(met)[indices]))]
    hours = hour[met.step[indices]]
    diary, held, refused = _Diary(fit), [], []
    for in_hour, mean in enumerate(expected):
        wanted, refusals = np.floor(np.array([mean, mean * fit.refusals]) + rng.random(2))
        for i in indices[hours == in_hour]:
            first, pair = int(met.step[i]), (int(met.a[i]), int(met.b[i]))
            if wanted:
                length = int(rng.integers(*fit.length_steps))
                last = min(first + length, int(met.last[i]))
                if diary.enter(first, last, pair):
                    initiator, partner = pair if rng.random() < 0.5 else pair[::-1]
                    held.append(
                        Conversation(first, last, initiator, partner, _utterances(rng, fit))
                    )
                    wanted -= 1
            elif refusals and diary.free(first, pair):
                refused.append((first, pair[int(rng.integers(2))]))
                refusals -= 1
    return sorted(held), refused


def _crowd(met: Meetings) -> npt.NDArray[np.float64]:
    """The number of agents in range of either agent, summed, for every meeting."""
    agents = met.b.max(initial=0) + 1
    ends = np.concatenate([met.a, met.b]) + agents * np.tile(met.step, 2)
    _, which, company = np.unique(ends, return_inverse=True, return_counts=True)
    crowd: npt.NDArray[np.int64] = company[which].reshape(2, -1).sum(axis=0)
    return crowd.astype(np.float64)


def _utterances(rng: np.random.Generator, fit: ConversationFit) -> int:
    if rng.random() < fit.full_length:
        return fit.most_utterances
    return int(rng.integers(2, fit.most_utterances))
