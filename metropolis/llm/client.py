"""The client: one way to a backend for all agents of a run.

A call is answered from the journal if it has been paid for before. Otherwise it waits for its turn
(`metropolis.llm.limits`), is sent, is sent again after a pause if it fails in a way that may pass,
is accounted, and is written to the journal before anybody sees the answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from math import isinf

from metropolis.durable import UnwritableError
from metropolis.llm.base import (
    RETRIED,
    Backend,
    BudgetExhausted,
    Completion,
    LLMError,
    MalformedError,
    RateLimitedError,
    Request,
    TimedOutError,
    UnreachableError,
)
from metropolis.llm.call_log import following
from metropolis.llm.journal import Answers, Key, key_of
from metropolis.llm.limits import Gate, Need, Turn, shared
from metropolis.llm.outage import Outage
from metropolis.llm.pauses import Pauses
from metropolis.llm.tokens import expected_tokens, prompt_tokens_at_most
from metropolis.llm.usage import FREE, Prices, Purchases, Usage, total
from metropolis.types import MetropolisError

BACKOFF_MAX_S = 30.0
PATIENCE_S = 300.0
OUTAGE_PAUSE_MAX_S = 5.0
OnPiece = Callable[[str], None]


class Client:
    """Sends the calls of all agents to `backend`.

    Args:
        backend: where calls go.
        concurrency: calls in flight at most; of those waiting, the lowest priority goes first.
        timeout_s: seconds an attempt may take; also the longest Retry-After that is waited for.
        retries: how often a call is sent again after 429, 5xx, a lost connection, a time-out or
            a malformed answer.
        patience_s: seconds that a server which cannot be reached is waited for, whatever `retries`
            says; it is told on standard error.
        requests_per_minute, tokens_per_minute: limits kept in any stretch of a minute.
        max_tokens, max_cost: budget of the whole run, what the journal holds included; a call that
            could exceed it raises BudgetExhausted.
        prices: what tokens cost; needed for `max_cost`.
        journal: where answers are kept and looked up.
        seed: of the pauses' jitter, which changes no answer.

    Raises MetropolisError on an argument that makes no sense.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        concurrency: int = 1024,
        timeout_s: float = 300.0,
        retries: int = 4,
        patience_s: float = PATIENCE_S,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        prices: Prices | None = None,
        journal: Answers | None = None,
        seed: int = 0,
    ) -> None:
        for name, value, least in (
            ("concurrency", concurrency, 1),
            ("retries", retries, 0),
            ("requests_per_minute", requests_per_minute, 1),
            ("tokens_per_minute", tokens_per_minute, 1),
            ("max_tokens", max_tokens, 0),
            ("max_cost", max_cost, 0),
            ("patience_s", patience_s, 0),
        ):
            if value is not None and not value >= least:
                raise MetropolisError(f"{name} is {value}; it must be at least {least}")
        if not timeout_s > 0:
            raise MetropolisError(f"timeout_s is {timeout_s}; it must be above 0")
        if max_cost is not None and prices is None:
            raise MetropolisError("max_cost needs prices: say what a million tokens cost")
        self.backend = backend
        self.timeout_s = timeout_s
        self.retries = retries
        self.patience_s = patience_s
        self.journal: Answers | None = None
        self.closed = False
        self.prices = prices or FREE
        self.usage: dict[str, Usage] = {}
        self._before = Usage()
        """What was bought for the run before this client was made."""
        self.workers = 1
        """So many clients share the run's budget evenly."""
        self.exhausted: BudgetExhausted | None = None
        """Set as soon as the budget cannot pay for a call."""
        self.on_exhausted: Callable[[BudgetExhausted], object] = lambda _: None
        """Told when the budget has run out, before the agent is, which may ignore it."""
        self.on_unkept: Callable[[UnwritableError], object] = lambda _: None
        """Told when an answer cannot be written down, before the agent is."""
        self.gate = Gate(concurrency, requests_per_minute, tokens_per_minute, max_tokens, max_cost)
        self._estimates = tokens_per_minute is not None
        self._bounds = max_tokens is not None or max_cost is not None
        self._outage = Outage(patience_s)
        self._is_excess_told = False
        self.pauses = Pauses(seed)
        if journal is not None:
            self.keep(journal)

    def keep(self, journal: Answers) -> None:
        """Keep answers in `journal`; those it holds have been paid for from the budget."""
        self.journal = journal
        kept = self._before
        for answer in journal.answers():
            kept.calls += 1
            kept.prompt_tokens += answer.prompt_tokens
            kept.output_tokens += answer.output_tokens
        self._spend(kept)

    def has_spent(self, bought: Iterable[Purchases]) -> None:
        """All that was bought for the run before, here or elsewhere, is paid from the budget."""
        sums = Usage()
        for one in bought:
            sums.calls += one.calls
            sums.prompt_tokens += one.prompt_tokens
            sums.output_tokens += one.output_tokens
        if sums.calls >= self._before.calls:  # what the journal holds is among it
            self._spend(sums)

    def _spend(self, before: Usage) -> None:
        tokens = before.prompt_tokens, before.output_tokens
        before.cost = self.prices.cost(*tokens)
        self._before = before
        for budget, spent in (
            (self.gate.token_budget, sum(tokens)),
            (self.gate.cost_budget, before.cost),
        ):
            budget.spent = max(budget.spent, spent)

    def has_bought(self, bought: Purchases) -> None:
        """Account for what others have bought for this run: calls, tokens and cost."""
        usage = self.usage.setdefault(bought.function, Usage())
        usage.calls += bought.calls
        usage.prompt_tokens += bought.prompt_tokens
        usage.output_tokens += bought.output_tokens
        usage.cost += self.prices.cost(bought.prompt_tokens, bought.output_tokens)

    def fresh(self, workers: int) -> Client:
        """One that has sent nothing yet, for one of `workers` processes, which share nothing.

        Each gets an equal share of what is left of the budgets, of the limits per minute and of the
        concurrency, at least one call. Raises MetropolisError on a limit that cannot be shared.
        """
        tokens, cost = self.gate.token_budget, self.gate.cost_budget
        client = Client(
            self.backend,
            concurrency=max(1, self.gate.concurrency // workers),
            timeout_s=self.timeout_s,
            retries=self.retries,
            patience_s=self.patience_s,
            requests_per_minute=shared("requests_per_minute", self.gate.requests, workers),
            tokens_per_minute=shared("tokens_per_minute", self.gate.tokens, workers),
            max_tokens=None if isinf(tokens.limit) else int(tokens.left // workers),
            max_cost=None if isinf(cost.limit) else cost.left / workers,
            prices=self.prices,
        )
        client.workers = workers
        return client

    @property
    def total(self) -> Usage:
        """The usage of all functions together."""
        return total(self.usage.values())

    @property
    def bought(self) -> Usage:
        """All that was bought for the run, by this client and before it; committed or not."""
        return total([self._before, self.total])

    async def check(self) -> None:
        """Raise LLMError, within seconds, if the backend cannot answer."""
        await self.backend.check()

    async def close(self) -> None:
        """Close the backend and the journal."""
        self.closed = True
        await self.backend.close()
        if self.journal is not None:
            self.journal.close()

    async def call(self, request: Request, on_piece: OnPiece | None = None) -> Completion:
        """The answer to `request`; raises LLMError when there is none.

        With `on_piece` the answer's pieces are given to it as they come, and a failure after the
        first piece is final.
        """
        key = None
        if self.journal is not None:
            key = key_of(request)
            known = self.journal.get(key)
            if known is not None:
                self._usage_of(request).reused += 1
                if on_piece is not None:
                    on_piece(known.text)
                return known
        return await self._retry(request, key, on_piece)

    async def stream(
        self, request: Request, on_end: Callable[[Completion], object] = lambda _: None
    ) -> AsyncGenerator[str | Completion, None]:
        """The answer's pieces as they come, and at last the whole Completion.

        `on_end` is given it at once, even when the reader leaves before.
        """
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def call() -> Completion:
            completion = await self.call(request, pieces.put_nowait)
            on_end(completion)
            return completion

        with following(None):  # this task is not the agent's
            task = asyncio.create_task(call())
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await task
        finally:
            task.cancel()  # the reader may have left early

    async def _retry(
        self, request: Request, key: Key | None, on_piece: OnPiece | None
    ) -> Completion:
        usage = self._usage_of(request)
        pieces = 0

        def count_piece(piece: str) -> None:
            nonlocal pieces
            pieces += 1
            assert on_piece is not None
            on_piece(piece)

        failed = away = 0
        while True:
            try:
                return await self._attempt(
                    request, usage, key, None if on_piece is None else count_piece
                )
            except RETRIED as error:
                if isinstance(error, UnreachableError) and not pieces:
                    away += 1
                    if self._outage.is_waited_out(error, asyncio.get_running_loop().time()):
                        usage.retries += 1
                        await self.pauses.wait(away, OUTAGE_PAUSE_MAX_S)
                        continue
                failed += 1
                if failed > self.retries or pieces or self._waits_too_long(error):
                    usage.failures += 1
                    if failed > 1:
                        raise type(error)(f"{error} ({failed} attempts)") from error
                    raise
                usage.retries += 1
                await self._pause(error, failed)
            except LLMError:
                usage.failures += 1
                raise

    async def _attempt(
        self, request: Request, usage: Usage, key: Key | None, on_piece: OnPiece | None
    ) -> Completion:
        need = self._need_of(request)
        priority = (int(request.speculative), request.priority)
        turn = await self.gate.enter(priority, need)
        if turn is None:
            self.exhausted = BudgetExhausted(self._exhausted(request, need))
            self.on_exhausted(self.exhausted)
            raise self.exhausted
        time = asyncio.get_running_loop().time
        began = time()
        try:
            async with asyncio.timeout(self.timeout_s):
                if on_piece is None:
                    completion = await self.backend.complete(request)
                else:
                    completion = await self._receive(request, on_piece)
        except TimeoutError:
            self._lose(turn, usage)
            raise TimedOutError(
                f"{self.backend} gave no answer within {self.timeout_s:g} s to {request.where}"
            ) from None
        except (MalformedError, asyncio.CancelledError):
            self._lose(turn, usage)
            raise
        except BaseException as error:
            if isinstance(error, RateLimitedError) and not self._waits_too_long(error):
                self.gate.hold(error.retry_after_s or 0.0)
            self.gate.leave(turn, 0, 0.0)
            raise
        self._outage.end(time())
        tokens = completion.prompt_tokens, completion.output_tokens
        cost = self.prices.cost(*tokens)
        self.gate.leave(turn, sum(tokens), cost, counted=True)
        if self._bounds and sum(tokens) > need.tokens_max and not self._is_excess_told:
            self._is_excess_told = True
            sys.stderr.write(
                f"metropolis: {self.backend} took {sum(tokens):,} tokens for {request.where}, not "
                f"{need.tokens_max:,} at most: it does not keep to max_tokens. The budget may be "
                "exceeded by this answer; from now on every call reserves as much more\n"
            )
        latency_s = time() - began
        usage.calls += 1
        usage.prompt_tokens += tokens[0]
        usage.output_tokens += tokens[1]
        usage.cost += cost
        usage.latency_s += latency_s
        usage.latency_max_s = max(usage.latency_max_s, latency_s)
        if key is not None and self.journal is not None:
            try:
                kept = self.journal.put(key, completion)
            except UnwritableError as error:
                self.on_unkept(error)
                raise
            if kept is not None:
                await kept
        return completion

    async def _receive(self, request: Request, on_piece: OnPiece) -> Completion:
        completion = None
        async for item in self.backend.stream(request):
            if isinstance(item, str):
                on_piece(item)
            else:
                completion = item
        if completion is None:
            raise MalformedError(f"{self.backend} broke off its answer to {request.where}")
        return completion

    def _usage_of(self, request: Request) -> Usage:
        usage = self.usage.get(request.function)
        if usage is None:
            usage = self.usage[request.function] = Usage()
        return usage

    def _need_of(self, request: Request) -> Need:
        expected = expected_tokens(request) if self._estimates else 0
        if not self._bounds:
            return Need(expected)
        prompt_max = prompt_tokens_at_most(request)
        return Need(
            expected,
            prompt_max + request.max_tokens,
            self.prices.cost(prompt_max, request.max_tokens),
        )

    def _lose(self, turn: Turn, usage: Usage) -> None:
        """An attempt without a usable answer may have been paid for all the same."""
        most = turn.reserved
        usage.lost_tokens += most.tokens_max
        usage.cost += most.cost_max
        self.gate.leave(turn, most.tokens_max, most.cost_max)

    def _exhausted(self, request: Request, need: Need) -> str:
        need = self.gate.reservation(need)
        tokens, cost = self.gate.token_budget, self.gate.cost_budget
        if tokens.ends_before(need.tokens_max):
            left, asked = f"{tokens.left:,.0f} tokens", f"{need.tokens_max:,}"
        else:
            left, asked = f"{cost.left:.4f} of the money", f"{need.cost_max:.4f}"
        if self.workers > 1:
            left += f" of a worker's share, one of {self.workers},"
        anew = " to share out the rest anew, or" if self.workers > 1 else ""
        return (
            f"the budget is exhausted: {left} are left, {request.where} could take {asked}; "
            f"resume{anew} with a larger budget"
        )

    def _waits_too_long(self, error: LLMError) -> bool:
        """Whether the server wants to be left alone for longer than anybody would wait."""
        return isinstance(error, RateLimitedError) and (error.retry_after_s or 0) > self.timeout_s

    async def _pause(self, error: LLMError, failed: int) -> None:
        if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
            return  # the gate holds everybody
        await self.pauses.wait(failed, BACKOFF_MAX_S)
