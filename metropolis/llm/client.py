"""The client: sends the calls of all agents of a run to one backend.

A call is answered from the journal if it has been paid for before. Otherwise it waits for its turn
(`metropolis.llm.limits`), is sent, is retried after a pause if the failure may be temporary, is
accounted, and is written to the journal before the answer is returned.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
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
    OnPiece,
    RateLimitedError,
    RefusedError,
    Request,
    TimedOutError,
    UnreachableError,
    answer_of,
)
from metropolis.llm.call_log import in_strand
from metropolis.llm.client_arguments import check_arguments
from metropolis.llm.journal import Answers, Key, key_of
from metropolis.llm.limits import Gate, Need, Turn, worker_share
from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.outage import Outage
from metropolis.llm.pauses import Pauses
from metropolis.llm.tokens import expected_tokens, prompt_tokens_max
from metropolis.llm.usage import FREE, Prices, Purchases, Tokens, Usage, total
from metropolis.types import MetropolisError

BACKOFF_MAX_S = 30.0  # longest pause before a retry
PATIENCE_S = 300.0
OUTAGE_PAUSE_MAX_S = 5.0  # longest pause while the server is unreachable


class Client:
    """Sends the calls of all agents to `backend`.

    Args:
        backend: receives the calls.
        concurrency: maximum number of calls in flight; others wait, in the order of `priority`.
        timeout_s: maximum duration of an attempt; also the longest Retry-After that is honoured.
        retries: maximum number of retries of a call after 429, 5xx, a lost connection, a time-out
            or a malformed answer.
        patience_s: how long to wait for an unreachable server, regardless of `retries`; the wait is
            reported on standard error.
        requests_per_minute, tokens_per_minute: limits for every interval of one minute.
        max_tokens, max_cost: budget of the whole run, including what the journal lists; a call that
            could exceed it raises BudgetExhausted.
        prices: prices of tokens; required for `max_cost`.
        journal: stores answers and looks them up.
        models: the model of each call; None: the backend's.
        seed: seeds the jitter of the pauses, which does not affect answers.

    Raises MetropolisError on an invalid argument.
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
        models: ModelChoice | None = None,
        seed: int = 0,
    ) -> None:
        check_arguments(
            backend,
            journal,
            concurrency=concurrency,
            timeout_s=timeout_s,
            retries=retries,
            patience_s=patience_s,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_tokens=max_tokens,
            max_cost=max_cost,
            prices=prices,
            models=models,
            seed=seed,
        )
        self.backend, self.models, self.prices = backend, models or ModelChoice(), prices or FREE
        self.timeout_s, self.retries, self.patience_s = timeout_s, retries, patience_s
        self.journal: Answers | None = None
        self.closed = self._is_excess_reported = False
        self.usage: dict[str, Usage] = defaultdict(Usage)
        self._earlier = Usage()
        """Purchases of the run before this client was created."""
        self.workers = 1
        """Number of clients that share the run's budget evenly."""
        self.failure: MetropolisError | None = None
        """What ends the run: its budget is exhausted, or answers cannot be written."""
        self.on_failure: Callable[[MetropolisError], object] = lambda _: None
        """Called with a reason for that, before the error reaches the agent."""
        self.gate = Gate(concurrency, requests_per_minute, tokens_per_minute, max_tokens, max_cost)
        self._limits_tokens = tokens_per_minute is not None
        self._has_budget = max_tokens is not None or max_cost is not None
        self._outage, self._limited = Outage(patience_s), Outage(patience_s)
        """Times without an answer: of a server that cannot be reached, and that limits the rate."""
        self.pauses = Pauses(seed)
        if journal is not None:
            self.use_journal(journal)

    def use_journal(self, journal: Answers) -> None:
        """Store answers in `journal`; what it lists counts in the budget."""
        self.journal = journal
        earlier = Usage()
        for answer in journal.answers():
            earlier.add(1, answer.prompt_tokens, answer.output_tokens)
        self._charge_earlier(earlier)

    def charge(self, purchases: Iterable[Purchases]) -> None:
        """Charge the budget with all earlier purchases of the run, of any process."""
        sums = Usage()
        for one in purchases:
            sums.add(one.calls, one.prompt_tokens, one.output_tokens)
        if sums.calls >= self._earlier.calls:  # they include the journal's answers
            self._charge_earlier(sums)

    def _charge_earlier(self, earlier: Usage) -> None:
        lost = Tokens() if self.journal is None else self.journal.lost
        tokens = earlier.prompt_tokens + lost.prompt, earlier.output_tokens + lost.output
        earlier.lost_tokens = sum(lost)
        earlier.cost = self.prices.cost(*tokens)
        self._earlier = earlier
        self.gate.charge_earlier(sum(tokens), earlier.cost)

    def add_usage(self, purchases: Purchases) -> None:
        """Add purchases of other processes for this run to `usage`: calls, tokens and cost."""
        tokens = purchases.prompt_tokens, purchases.output_tokens
        self.usage[purchases.function].add(purchases.calls, *tokens, self.prices.cost(*tokens))

    def for_worker(self, workers: int) -> Client:
        """The client of one of `workers` processes, which share no state.

        Each gets an equal share of the remaining budgets, of the limits per minute and of the
        concurrency, which is at least 1. Raises MetropolisError on a limit that cannot be shared.
        """
        tokens, cost = self.gate.token_budget, self.gate.cost_budget
        client = Client(
            self.backend,
            concurrency=max(1, self.gate.concurrency // workers),
            timeout_s=self.timeout_s,
            retries=self.retries,
            patience_s=self.patience_s,
            requests_per_minute=worker_share("requests_per_minute", self.gate.requests, workers),
            tokens_per_minute=worker_share("tokens_per_minute", self.gate.tokens, workers),
            max_tokens=None if isinf(tokens.limit) else int(tokens.left // workers),
            max_cost=None if isinf(cost.limit) else cost.left / workers,
            prices=self.prices,
            models=self.models,
        )
        client.workers = workers
        return client

    @property
    def total(self) -> Usage:
        """The usage summed over all functions."""
        return total(self.usage.values())

    @property
    def bought(self) -> Usage:
        """All purchases of the run, by this client and before it, committed or not."""
        return total([self._earlier, self.total])

    async def check(self) -> None:
        """Raise LLMError, within seconds, if the backend cannot answer."""
        await self.backend.check()

    async def close(self) -> None:
        """Close the backend and the journal."""
        self.closed = True
        await self.backend.close()
        if self.journal is not None:
            self.journal.close()

    async def call(self, request: Request) -> Completion:
        """The answer to `request`; raises LLMError on failure."""
        await asyncio.sleep(0)  # a known answer, too, comes after the tasks that are ready now
        return await self.answer(request)

    async def answer(self, request: Request, on_piece: OnPiece | None = None) -> Completion:
        """Like `call`, but a known answer comes at once: for tasks of their own.

        `on_piece` receives the pieces as they arrive; a failure after the first is not retried.
        """
        key = None
        if self.journal is not None:
            key = key_of(request)
            if (known := self.journal.get(key)) is not None:
                self.usage[request.function].reused += 1
                if on_piece is not None:
                    on_piece(known.text)
                return known.with_service(None)
        return await self._retry(request, key, on_piece)

    async def stream(
        self, request: Request, on_end: Callable[[Completion], object] = lambda _: None
    ) -> AsyncGenerator[str | Completion, None]:
        """The pieces of the answer as they arrive, then the whole Completion.

        `on_end` receives the Completion on its arrival, even if the reader has left.
        """
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        async def call() -> Completion:
            completion = await self.answer(request, pieces.put_nowait)
            on_end(completion)
            return completion

        with in_strand(None):  # this task does not belong to the agent
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
        usage = self.usage[request.function]
        pieces = 0

        def count_piece(piece: str) -> None:
            nonlocal pieces
            pieces += 1
            assert on_piece is not None
            on_piece(piece)

        failed = waited = 0
        while True:
            try:
                return await self._attempt(
                    request, usage, key, None if on_piece is None else count_piece
                )
            except RETRIED as error:
                if not pieces and self._is_waited_for(error):
                    waited += 1
                    usage.retries += 1
                    await self._pause(error, waited, OUTAGE_PAUSE_MAX_S)
                    continue
                failed += 1
                if failed > self.retries or pieces or self._waits_too_long(error):
                    usage.failures += 1
                    if failed > 1:
                        error.args = (f"{error} ({failed} attempts)",)
                    raise
                usage.retries += 1
                await self._pause(error, failed, BACKOFF_MAX_S)
            except LLMError:
                usage.failures += 1
                raise

    async def _attempt(
        self, request: Request, usage: Usage, key: Key | None, on_piece: OnPiece | None
    ) -> Completion:
        need = self._need_of(request)
        turn = await self.gate.enter((int(request.speculative), request.priority), need)
        if turn is None:
            exhausted = self.gate.exhausted(need, request.where, self.workers)
            raise self._ending(BudgetExhausted(exhausted))
        time = asyncio.get_running_loop().time
        began = time()
        completion = await self._send(request, turn, usage, on_piece)
        self._outage.end(time())
        self._limited.end(time())
        tokens = completion.prompt_tokens, completion.output_tokens
        cost = self.prices.cost(*tokens)
        self.gate.leave(turn, sum(tokens), cost, counted=True)
        if self._has_budget and sum(tokens) > need.tokens_max:
            self._report_excess(request, sum(tokens), need.tokens_max)
        usage.add(1, *tokens, cost)
        usage.add_latency(time() - began)
        if key is not None and self.journal is not None:
            await self._keep(self.journal, key, completion)
        return completion

    async def _send(
        self, request: Request, turn: Turn, usage: Usage, on_piece: OnPiece | None
    ) -> Completion:
        """The backend's answer; an attempt that fails returns the turn, and is charged."""
        try:
            async with asyncio.timeout(None if isinf(self.timeout_s) else self.timeout_s):
                completion = await answer_of(self.backend, request, on_piece)
        except TimeoutError:
            self._charge_reservation(turn, usage, request)
            raise TimedOutError(
                f"{self.backend} gave no answer within {self.timeout_s:g} s to {request.where}"
            ) from None
        except (MalformedError, asyncio.CancelledError):
            self._charge_reservation(turn, usage, request)
            raise
        except BaseException as error:
            lost = Tokens(*(error.tokens or ())) if isinstance(error, LLMError) else Tokens()
            if isinstance(error, LLMError) and not self._waits_too_long(error):
                self.gate.pause(error.retry_after_s or 0.0)
            if isinstance(error, RefusedError):
                self._outage.end(asyncio.get_running_loop().time())
            self._charge_lost(turn, usage, lost, self.prices.cost(*lost))
            raise
        return completion

    def _report_excess(self, request: Request, tokens: int, tokens_max: int) -> None:
        """Report the first answer that takes more tokens than the budget allowed for."""
        if not self._is_excess_reported:
            self._is_excess_reported = True
            sys.stderr.write(
                f"metropolis: {self.backend} took {tokens:,} tokens for {request.where}, more than "
                f"{tokens_max:,}: it does not observe max_tokens. The budget may be exceeded by "
                "this answer; later calls reserve the excess as well\n"
            )

    async def _keep(self, journal: Answers, key: Key, completion: Completion) -> None:
        try:
            if (stored := journal.put(key, completion)) is not None:
                await stored
        except UnwritableError as error:
            raise self._ending(error) from None

    def _ending(self, error: MetropolisError) -> MetropolisError:
        """`error`, which ends the run."""
        self.failure = self.failure or error
        self.on_failure(error)
        return error

    def _need_of(self, request: Request) -> Need:
        expected = expected_tokens(request) if self._limits_tokens else 0
        return Need.most(request, self.prices, expected) if self._has_budget else Need(expected)

    def _charge_reservation(self, turn: Turn, usage: Usage, request: Request) -> None:
        """Charge the most that `request` could take: an attempt that failed may still cost."""
        lost = turn.reserved if self._has_budget else Need.most(request, self.prices)
        prompt_max = prompt_tokens_max(request)
        tokens = Tokens(prompt_max, lost.tokens_max - prompt_max)
        self._charge_lost(turn, usage, tokens, lost.cost_max)

    def _charge_lost(self, turn: Turn, usage: Usage, lost: Tokens, cost: float) -> None:
        usage.lost_tokens += sum(lost)
        usage.cost += cost
        self.gate.leave(turn, sum(lost), cost)
        if any(lost) and self.journal is not None and not self.closed:
            try:
                self.journal.lose(lost)
            except UnwritableError as error:  # the attempt's own error is raised
                self._ending(error)

    def _is_waited_for(self, error: LLMError) -> bool:
        """Whether `error` ends by itself, so that it does not count in `retries`."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, UnreachableError):
            return self._outage.should_retry(error, now)
        if isinstance(error, RateLimitedError) and error.retry_after_s:
            return not self._waits_too_long(error) and self._limited.should_retry(error, now)
        return False

    def _waits_too_long(self, error: LLMError) -> bool:
        """Whether Retry-After is longer than the client waits."""
        return (error.retry_after_s or 0) > self.timeout_s

    async def _pause(self, error: LLMError, number: int, most_s: float) -> None:
        if not error.retry_after_s:  # otherwise the gate holds all calls
            await self.pauses.wait(number, most_s)
