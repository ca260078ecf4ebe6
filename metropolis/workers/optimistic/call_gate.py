"""Decides which calls of agents that run ahead are sent at once, and which wait until needed.

A step that runs ahead is mostly wrong because of an agent in sight that lags behind, or because an
earlier step of the same agent was wrong. The chance that a call is wasted is learned during the
run, by the call's function, the agents in sight that lag behind, and the agent's own steps that are
not final. Calls that wait count as well: by whether their step needed them in the end.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from metropolis.llm.journal import Key
from metropolis.speculation.base import Speculation
from metropolis.types import AgentId, Step
from metropolis.workers.event_loop import idles
from metropolis.world.state import State

CHANCE_MAX = 0.6
"""A call is sent if its chance to be wasted is at most this."""
BUDGET_USED = 0.8
"""Share of the waste budget above which CHANCE_MAX is reduced, to 0 when all of it is spent."""
WASTE_FREE = 5
"""Calls that may be wasted before the budget counts."""
STUCK_S = 0.2
"""Calls that wait are sent after this time without progress, if nothing was left to compute."""
LAGS = (0, 1, 3)
"""The greatest lag of each `lag_class` but the last."""
OPEN_CLASS_MAX = 4
"""The `open_class` of 8 steps and more."""
CHANCE_FIRST, WEIGHT_FIRST = 0.3, 4.0
"""Prior chance of a function, and the number of calls that it weighs as much as."""


class Risk(NamedTuple):
    """What the chance of a call to be wasted depends on, beside its function.

    Laggards are agents in sight whose result of the step before the call's is not known yet.
    """

    laggards: int = 0
    """Number of laggards, at most 3."""
    lag_class: int = 0
    """Greatest lag: 1 for 1 step, 2 for 2 and 3 steps, 3 for more; 0 without laggards."""
    open_class: int = 0
    """Number of binary digits of the number of the agent's own earlier steps that are not final, at
    most OPEN_CLASS_MAX."""


class WasteChances:
    """The share of calls that were wasted, by function and risk."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, Risk | None]] = Counter()
        self._wasted: defaultdict[tuple[str, Risk | None], float] = defaultdict(float)

    def chance(self, function: str, risk: Risk) -> float:
        """The chance that a call is wasted; with few known ones, near that of its function."""
        chance = CHANCE_FIRST
        for kind in ((function, None), (function, risk)):
            wasted = self._wasted[kind] + WEIGHT_FIRST * chance
            chance = wasted / (self._seen[kind] + WEIGHT_FIRST)
        return chance

    def learn(self, function: str, risk: Risk, wasted: float) -> None:
        """Add a call that was wasted with the probability `wasted`."""
        for kind in ((function, None), (function, risk)):
            self._seen[kind] += 1
            self._wasted[kind] += wasted


@dataclass
class _Waiting:
    may_send: asyncio.Future[bool]
    laggards: Set[AgentId]


class CallGate:
    """Admits the calls of steps that are not final, or makes them wait."""

    def __init__(
        self,
        speculation: Speculation,
        predicted: State,
        names: Sequence[str],
        perception_radius: float,
        waste_budget: float,
        waiting_max: float = inf,
    ) -> None:
        """Steps of `speculation` count from the first one of `predicted`.

        `waste_budget`: maximum share of the sent calls that may be wasted. At most `waiting_max`
        executions wait: those of plain agents occupy threads that needed steps may lack.
        """
        self._waiting_max = waiting_max
        self._speculation, self._predicted = speculation, predicted
        self._names, self._radius = names, perception_radius
        self._number_of = {name: number for number, name in enumerate(names)}
        self.waste_budget = waste_budget
        self.final_calls = self.wasted_calls = 0
        """Calls of final steps, and further calls sent for these steps, which were wasted."""
        self._chances = WasteChances()
        self._requested: defaultdict[tuple[AgentId, Step], dict[Key, Risk]] = defaultdict(dict)
        """(agent, step) -> its speculative calls, with the risk when each was requested."""
        self._next_final: defaultdict[AgentId, Step] = defaultdict(lambda: predicted.first_step)
        """agent -> its first step that is not final."""
        self._sent: Counter[tuple[AgentId, Step]] = Counter()
        """(agent, step) that is not final -> the number of speculative calls sent for it."""
        self._risked: defaultdict[tuple[AgentId, Step], float] = defaultdict(float)
        """(agent, step) -> the sum of the chances of these calls to be wasted."""
        self._sent_total, self._risked_total = 0, 0.0
        self._waiting: dict[Key, _Waiting] = {}
        self._waiters = 0
        """Number of executions that wait; several may wait for the same call."""
        self.progress: Callable[[], int | None] = lambda: None
        """Returns a number that changes with every call that ends; None while one is in flight."""
        self._idles: Callable[[], float] | None = None
        self._seen: tuple[int | None, float] = None, 0
        """The progress, and how often the event loop was idle, when `_unlock` last looked."""
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, key: Key) -> bool:
        """Wait until the speculative call `key` may be sent; returns whether it is then needed."""
        lags = self._lags(key)
        risk = self._risk(key, lags)
        self._requested[key.agent, key.step].setdefault(key, risk)
        if self._admits(key, risk) or self._waiters >= self._waiting_max:
            return False
        if key not in self._waiting:
            self._waiting[key] = _Waiting(asyncio.get_running_loop().create_future(), lags.keys())
        self._waiters += 1
        self._watch()
        try:
            return await asyncio.shield(self._waiting[key].may_send)
        finally:
            self._waiters -= 1

    def promote(self, agent: AgentId, step: Step) -> None:
        """Send the calls of an agent-step that wait: they are needed."""
        for key in [key for key in self._waiting if (key.agent, key.step) == (agent, step)]:
            self._waiting.pop(key).may_send.set_result(True)

    def review(self, advanced: Set[AgentId] | None = None) -> None:
        """Send the calls that wait if their chance to be wasted is low enough by now.

        `advanced`: agents with new results; only their calls, and calls of which they were
        laggards, are reviewed. None: all calls.
        """
        for key, one in list(self._waiting.items()):
            if advanced is not None and advanced.isdisjoint({key.agent, *one.laggards}):
                continue
            lags = self._lags(key)
            one.laggards = lags.keys()
            if self._admits(key, self._risk(key, lags)):
                self._waiting.pop(key).may_send.set_result(False)

    def commit(self, agent: AgentId, step: Step, functions: Iterable[str], sent: int) -> None:
        """A step is final, with calls of `functions`; `sent` calls were sent for it."""
        needed = Counter(functions)
        self.final_calls += needed.total()
        self.wasted_calls += max(0, sent - needed.total())
        self._sent_total -= self._sent.pop((agent, step), 0)
        self._risked_total -= self._risked.pop((agent, step), 0.0)
        requested = self._requested.pop((agent, step), {})
        counts = Counter(key.function for key in requested)
        for key, risk in requested.items():
            count = counts[key.function]
            wasted = max(0, count - needed[key.function]) / count
            self._chances.learn(key.function, risk, wasted)
        self._next_final[agent] = step + 1
        self.promote(agent, step)  # what waits belongs to abandoned executions

    def was_wrong(self, agent: AgentId, step: Step) -> None:
        """An execution was wrong: the calls sent for the step so far are probably wasted."""
        more = self._sent[agent, step] - self._risked[agent, step]
        self._risked[agent, step] += more
        self._risked_total += more

    def _admits(self, key: Key, risk: Risk) -> bool:
        """Whether to send a call now; if so, count it as sent."""
        if not self.waste_budget:
            return False
        sent = max(1, self.final_calls + self.wasted_calls + self._sent_total)
        wasted = self.wasted_calls + self._risked_total
        spent = (wasted - WASTE_FREE) / (self.waste_budget * sent)
        limit = CHANCE_MAX * min(1.0, (1 - spent) / (1 - BUDGET_USED))
        chance = self._chances.chance(key.function, risk)
        if chance > limit:
            return False
        self._count(key, chance)
        return True

    def _count(self, key: Key, chance: float) -> None:
        """Count a call as sent."""
        self._sent[key.agent, key.step] += 1
        self._risked[key.agent, key.step] += chance
        self._sent_total += 1
        self._risked_total += chance

    def _watch(self) -> None:
        if self._timer is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._idles = self._idles or idles(loop)
            self._timer = loop.call_later(STUCK_S, self._unlock)

    def _unlock(self) -> None:
        """Send the calls of the lowest step if there has been no progress since the last look.

        Their agents may hold what the others wait for, such as a lock. A run that computes is not
        stuck: how fast it computes must not decide which calls are sent.
        """
        assert self._idles is not None
        (before, idle_before), self._timer = self._seen, None
        progress, idle = self._seen = self.progress(), self._idles()
        if self._waiting and progress is not None and progress == before and idle != idle_before:
            lowest = min(key.step for key in self._waiting)
            for key in [key for key in self._waiting if key.step == lowest]:
                risk = self._risk(key, self._lags(key))
                self._count(key, self._chances.chance(key.function, risk))
                self._waiting.pop(key).may_send.set_result(False)
        self._watch()

    def _risk(self, key: Key, lags: Mapping[AgentId, Step]) -> Risk:
        lag_class = bisect_left(LAGS, max(lags.values(), default=0))
        open_steps = max(0, key.step - self._next_final[key.agent])
        return Risk(min(len(lags), 3), lag_class, min(open_steps.bit_length(), OPEN_CLASS_MAX))

    def _lags(self, key: Key) -> dict[AgentId, Step]:
        """Laggard -> the number of steps by which it lags behind."""
        body = self._predicted.entity(self._names[key.agent], key.step)
        assert body is not None
        own_step = key.step - self._predicted.first_step
        near = self._predicted.near(body.position, self._radius, key.step)
        numbers = [self._number_of[name] for name in near if name in self._number_of]
        lags = {number: own_step - self._speculation.next_step(number) for number in numbers}
        return {number: lag for number, lag in lags.items() if lag > 0}
