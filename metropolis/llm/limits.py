"""Admission of requests: concurrency, rates and budgets, smallest priority first.

A request enters, waits its turn in the order (priority, arrival), is sent, and leaves with its
actual usage. The head of the queue is never overtaken, whatever it waits for. Times are on the
clock of the running event loop, in seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from metropolis.llm.base import Request
from metropolis.llm.tokens import prompt_tokens_max
from metropolis.llm.usage import Prices
from metropolis.types import MetropolisError

PERIOD_S = 60.0


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: expected tokens for the rate limit, maxima for the budgets."""

    expected_tokens: int = 0
    tokens_max: int = 0
    cost_max: float = 0.0

    @classmethod
    def most(cls, request: Request, prices: Prices, expected_tokens: int = 0) -> Need:
        """The need of `request` if its prompt and its answer have their maximum lengths."""
        prompt_max = prompt_tokens_max(request)
        cost_max = prices.cost(prompt_max, request.max_tokens)
        return cls(expected_tokens, prompt_max + request.max_tokens, cost_max)


class RateLimit:
    """At most `limit` in any interval of one minute; a larger single amount is taken alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: deque[list[float]] = deque()  # [when it expires, amount], oldest first
        self._amount = 0.0

    def free_at(self, now: float, amount: int) -> float:
        """The earliest time at which `amount` may be taken, at least `now`."""
        while self._taken and self._taken[0][0] <= now:
            self._amount -= self._taken.popleft()[1]
        excess = self._amount + amount - self.limit
        at = now
        for expires, taken in self._taken:
            if excess <= 0:
                break
            at = expires
            excess -= taken
        return at

    def take(self, now: float, amount: int) -> list[float]:
        """Take `amount`; returns the entry to correct."""
        entry = [now + PERIOD_S, amount]
        self._taken.append(entry)
        self._amount += amount
        return entry

    def correct(self, entry: list[float], amount: int) -> None:
        """Replace the expected amount of `entry` by the actual one."""
        if self._taken and entry[0] >= self._taken[0][0]:
            self._amount += amount - entry[1]
        entry[1] = amount


@dataclass(slots=True)
class Budget:
    """`spent` plus `reserved` never exceeds `limit`, if answers stay within their needs."""

    limit: float
    spent: float = 0.0
    reserved: float = 0.0

    @property
    def left(self) -> float:
        """The amount not yet spent."""
        return max(0.0, self.limit - self.spent)

    def can_never_fit(self, amount: float) -> bool:
        """Whether `amount` would not fit even if all reservations were returned."""
        return self.spent + amount > self.limit

    def fits(self, amount: float) -> bool:
        """Whether `amount` fits now."""
        return self.spent + self.reserved + amount <= self.limit


@dataclass(slots=True)
class Turn:
    """An admitted request, which must leave again."""

    need: Need
    reserved: Need
    """Reservation in the budgets: the need plus the largest excess seen so far."""
    rate_entry: list[float] | None


@dataclass(order=True, slots=True)
class _Waiting:
    order: tuple[int, ...]
    need: Need = field(compare=False)
    future: asyncio.Future[Turn | None] = field(compare=False)


class Gate:
    """Admits requests. `None` means no limit.

    With a budget, requests are sent one at a time until an answer has been counted. If an answer
    exceeds its reservation, because the server does not keep to `max_tokens`, every later request
    reserves that excess as well, so that at most one answer exceeds a budget.
    """

    def __init__(
        self,
        concurrency: int,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.in_flight = 0
        self.requests = None if requests_per_minute is None else RateLimit(requests_per_minute)
        self.tokens = None if tokens_per_minute is None else RateLimit(tokens_per_minute)
        self.token_budget = Budget(float("inf") if max_tokens is None else max_tokens)
        self.cost_budget = Budget(float("inf") if max_cost is None else max_cost)
        self.excess = Need()
        """The largest excess of an answer over its need."""
        self._is_bounded = max_tokens is not None or max_cost is not None
        self._is_proven = not self._is_bounded
        """Whether an answer has shown how the server keeps to reservations."""
        self._queue: list[_Waiting] = []
        self._arrivals = 0
        self._is_held = False
        self._paused_until = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, priority: tuple[int, ...], need: Need) -> Turn | None:
        """Wait for a turn; None when a budget can no longer pay for the request."""
        if not self._queue and self._is_free_for(need):  # the usual case
            return self._take(need)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Turn | None] = loop.create_future()
        self._arrivals += 1
        heappush(self._queue, _Waiting((*priority, self._arrivals), need, future))
        self._admit()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and (turn := future.result()) is not None:
                self.leave(turn, 0, 0.0)
            else:
                self._admit()  # the head of the queue may have gone
            raise

    def charge_earlier(self, tokens: int, cost: float) -> None:
        """Count what the run has spent in all before it continued."""
        for budget, spent in (self.token_budget, tokens), (self.cost_budget, cost):
            budget.spent = max(budget.spent, spent)

    def leave(self, turn: Turn, tokens: int, cost: float, *, counted: bool = False) -> None:
        """Return the turn: `tokens` and `cost` were used; `counted`: they come from an answer."""
        self.in_flight -= 1
        for budget, reserved, used in (
            (self.token_budget, turn.reserved.tokens_max, tokens),
            (self.cost_budget, turn.reserved.cost_max, cost),
        ):
            budget.reserved = budget.reserved - reserved if self.in_flight else 0.0
            budget.spent += used
        if counted and self._is_bounded:
            self._is_proven = True
            self.excess = Need(
                tokens_max=max(self.excess.tokens_max, tokens - turn.need.tokens_max),
                cost_max=max(self.excess.cost_max, cost - turn.need.cost_max),
            )
        if counted and self.tokens is not None and turn.rate_entry is not None:
            self.tokens.correct(turn.rate_entry, tokens)
        self._admit()

    def exhausted(self, need: Need, where: str, workers: int) -> str:
        """The sentence for the request `where`, which a budget shared by `workers` cannot pay."""
        need = self.reservation(need)
        if self.token_budget.can_never_fit(need.tokens_max):
            left, needed = f"{self.token_budget.left:,.0f} tokens are", f"{need.tokens_max:,}"
        else:
            left, needed = _told_apart(self.cost_budget.left, need.cost_max)
            left += " of the money is"
        share = f" of a worker's share, one of {workers}" if workers > 1 else ""
        reason = " to redistribute the rest, or" if workers > 1 else ""
        return (
            f"the budget is exhausted: {left} left{share}, {where} could take {needed}; "
            f"resume{reason} with a larger budget"
        )

    @property
    def is_limited(self) -> bool:
        """Whether a budget or a limit per minute counts requests."""
        return self._is_bounded or self.requests is not None or self.tokens is not None

    def pause(self, wait_s: float) -> None:
        """Send nothing for `wait_s`, as the server would refuse it."""
        loop = asyncio.get_running_loop()
        self._paused_until = max(self._paused_until, loop.time() + wait_s)

    def hold(self, held: bool) -> None:
        """Admit nothing while `held`; on the event loop."""
        self._is_held = held
        self._admit()

    def release(self) -> None:
        """End `hold` when the run has ended: the requests that wait are not sent."""
        self._is_held = False

    def reservation(self, need: Need) -> Need:
        """The reservation of a request with that `need`."""
        if not self._is_bounded:
            return need
        return Need(
            need.expected_tokens,
            need.tokens_max + self.excess.tokens_max,
            need.cost_max + self.excess.cost_max,
        )

    def _admit(self) -> None:
        while self._queue:
            head = self._queue[0]
            reserved = self.reservation(head.need)
            if head.future.done():  # cancelled while it waited
                heappop(self._queue)
            elif self.token_budget.can_never_fit(reserved.tokens_max) or (
                self.cost_budget.can_never_fit(reserved.cost_max)
            ):
                heappop(self._queue)
                head.future.set_result(None)
            elif self._is_free_for(head.need):
                heappop(self._queue)
                head.future.set_result(self._take(head.need))
            else:
                return

    def _is_free_for(self, need: Need) -> bool:
        if self._is_held or self.in_flight >= (self.concurrency if self._is_proven else 1):
            return False  # the next request that leaves checks again
        reserved = self.reservation(need)
        if not (
            self.token_budget.fits(reserved.tokens_max) and self.cost_budget.fits(reserved.cost_max)
        ):
            return False
        if self.requests is None and self.tokens is None and self._paused_until == float("-inf"):
            return True
        loop = asyncio.get_running_loop()
        now = loop.time()
        at = max(now, self._paused_until)
        if self.requests is not None:
            at = max(at, self.requests.free_at(now, 1))
        if self.tokens is not None:
            at = max(at, self.tokens.free_at(now, need.expected_tokens))
        if at > now:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(at, self._admit)
        return at <= now

    def _take(self, need: Need) -> Turn:
        self.in_flight += 1
        reserved = self.reservation(need)
        self.token_budget.reserved += reserved.tokens_max
        self.cost_budget.reserved += reserved.cost_max
        if self.requests is None and self.tokens is None:
            return Turn(need, reserved, None)
        now = asyncio.get_running_loop().time()
        if self.requests is not None:
            self.requests.take(now, 1)
        entry = None if self.tokens is None else self.tokens.take(now, need.expected_tokens)
        return Turn(need, reserved, entry)


def _told_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with so many decimals, at least 4, that they differ if possible."""
    for decimals in range(4, 16):
        texts = f"{one:.{decimals}f}", f"{other:.{decimals}f}"
        if texts[0] != texts[1]:
            break
    return texts


def worker_share(name: str, limit: RateLimit | None, workers: int) -> int | None:
    """One worker's share of a limit per minute."""
    if limit is None:
        return None
    if limit.limit < workers:
        raise MetropolisError(
            f"{name} is {limit.limit} and cannot be shared by {workers} workers; use fewer workers"
        )
    return limit.limit // workers
