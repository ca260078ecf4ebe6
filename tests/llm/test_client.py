"""The client: turns, limits, budgets, retries, accounting; on a clock that leaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm import (
    BudgetExhausted,
    Client,
    Completion,
    Journal,
    LLMError,
    MalformedError,
    Prices,
    RateLimitedError,
    RefusedError,
    Request,
    TimedOutError,
    UnavailableError,
    UnreachableError,
)
from metropolis.llm.tokens import approximate_tokens, prompt_tokens_max
from tests.llm.fakes import Fake, request
from tests.llm.virtual_loop import run_virtually

calls = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(0, 90)), min_size=1, max_size=25
)  # step, output tokens, time of the call


class OverloadedError(UnavailableError):
    """A backend's own error, made from more than a sentence."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


async def ask_all(client: Client, requests: list[tuple[Request, float]]) -> list[object]:
    async def ask(wanted: Request, at: float) -> Completion:
        await asyncio.sleep(at)
        return await client.call(wanted)

    return await asyncio.gather(*(ask(*item) for item in requests), return_exceptions=True)


@given(calls=calls, concurrency=st.integers(1, 4))
def test_the_lowest_step_goes_first_and_arrivals_in_order(
    calls: list[tuple[int, int, int]], concurrency: int
) -> None:
    fake = Fake(latency_s=lambda r: r.max_tokens)
    client = Client(fake, concurrency=concurrency)
    requests = [
        (request(step=s, priority=s, agent=i, max_tokens=n), 0.0)
        for i, (s, n, _) in enumerate(calls)
    ]
    run_virtually(ask_all(client, requests))
    assert fake.in_flight_max <= concurrency
    at_once, queued = requests[:concurrency], requests[concurrency:]
    queued.sort(key=lambda item: item[0].priority)  # stable: first come, first served
    assert [r for _, r in fake.sent] == [r for r, _ in at_once + queued]


def test_speculative_requests_go_last() -> None:
    fake = Fake()
    requests = [request(priority=0), request(priority=1, speculative=True), request(priority=9)]
    run_virtually(ask_all(Client(fake, concurrency=1), [(r, 0.0) for r in requests]))
    assert [r.speculative for _, r in fake.sent] == [False, False, True]


@given(calls=calls, limit=st.integers(1, 6))
def test_no_minute_holds_more_requests_than_allowed(
    calls: list[tuple[int, int, int]], limit: int
) -> None:
    fake = Fake()
    client = Client(fake, requests_per_minute=limit)
    requests = [(request(step=s, priority=s), float(at)) for s, _, at in calls]
    answers = run_virtually(ask_all(client, requests))
    assert all(isinstance(answer, Completion) for answer in answers)
    times = [when for when, _ in fake.sent]
    for begin in times:
        assert sum(begin <= when < begin + 60 - 1e-6 for when in times) <= limit
    if len(calls) <= limit:
        assert max(times) <= 90  # no call waited


@given(calls=calls, limit=st.integers(40, 120))
def test_no_minute_holds_more_tokens_than_allowed(
    calls: list[tuple[int, int, int]], limit: int
) -> None:
    def used(r: Request) -> int:
        return approximate_tokens(r.text) + r.max_tokens // 2  # less than reserved

    fake = Fake(lambda r: Completion("", approximate_tokens(r.text), r.max_tokens // 2, "stop"))
    client = Client(fake, tokens_per_minute=limit)
    requests = [(request(step=s, max_tokens=n), float(at)) for s, n, at in calls]
    run_virtually(ask_all(client, requests))
    sent = [(when, used(r)) for when, r in fake.sent]
    assert len(sent) == len(calls)
    for begin, _ in sent:
        assert sum(n for when, n in sent if begin <= when < begin + 60 - 1e-6) <= limit


def test_unused_tokens_are_returned() -> None:
    fake = Fake(lambda r: Completion("", 4, 1, "stop"))
    client = Client(fake, tokens_per_minute=100)

    async def ask() -> float:
        for _ in range(10):  # each expects 42 and uses 5
            await client.call(request(max_tokens=40))
        return asyncio.get_running_loop().time()

    assert run_virtually(ask()) == 10


def test_a_request_larger_than_the_limit_goes_alone() -> None:
    fake = Fake()
    client = Client(fake, tokens_per_minute=10)
    run_virtually(ask_all(client, [(request(max_tokens=50), 0.0), (request(max_tokens=50), 0.0)]))
    assert len(fake.sent) == 2


@given(calls=calls, budget=st.integers(0, 1500))
def test_the_token_budget_is_never_exceeded(calls: list[tuple[int, int, int]], budget: int) -> None:
    spent = 0

    def answer(r: Request) -> Completion | Exception:
        nonlocal spent
        used = Completion("", len(r.text), r.max_tokens, "length")
        spent += used.prompt_tokens + used.output_tokens
        return MalformedError("lost") if r.step == 5 else used  # charged nevertheless

    fake = Fake(answer)
    client = Client(fake, max_tokens=budget, retries=1)
    requests = [(request(step=s, max_tokens=n), float(at)) for s, n, at in calls]
    answers = run_virtually(ask_all(client, requests))
    assert spent <= budget
    assert client.gate.token_budget.reserved == 0
    for (wanted, _), answer_ in zip(requests, answers, strict=True):
        if isinstance(answer_, BudgetExhausted):
            need = prompt_tokens_max(wanted) + wanted.max_tokens
            assert client.gate.token_budget.spent + need > budget
        elif not isinstance(answer_, Completion):
            assert isinstance(answer_, MalformedError)


@given(calls=calls, budget=st.floats(0, 2))
def test_the_cost_budget_is_never_exceeded(
    calls: list[tuple[int, int, int]], budget: float
) -> None:
    prices = Prices(1_000.0, 3_000.0)
    fake = Fake(lambda r: Completion("", len(r.text), r.max_tokens, "length"))
    client = Client(fake, max_cost=budget, prices=prices)
    requests = [(request(step=s, max_tokens=n), float(at)) for s, n, at in calls]
    answers = run_virtually(ask_all(client, requests))
    cost = sum(prices.cost(len(r.text), r.max_tokens) for _, r in fake.sent)
    assert cost <= budget + 1e-9
    assert client.total.cost == pytest.approx(cost)
    assert all(isinstance(answer, Completion | BudgetExhausted) for answer in answers)


def test_a_call_waits_for_reservations_that_may_be_returned() -> None:
    fake = Fake(lambda r: Completion("", 3, 2, "stop"))
    need = prompt_tokens_max(request()) + request().max_tokens
    client = Client(fake, max_tokens=need + 10)
    answers = run_virtually(ask_all(client, [(request(), 0.0)] * 3))
    assert all(isinstance(answer, Completion) for answer in answers)
    assert fake.in_flight_max == 1


def test_an_exhausted_budget_gets_a_sentence() -> None:
    with pytest.raises(BudgetExhausted) as raised:
        run_virtually(Client(Fake(), max_tokens=30).call(request()))
    assert str(raised.value) == (
        "the budget is exhausted: 30 tokens are left, plan of 'agent 3' at step 14 could take 45; "
        "resume with a larger budget"
    )


def test_amounts_of_money_that_differ_are_told_apart() -> None:
    client = Client(Fake(), max_cost=0.000044, prices=Prices(1, 1))
    with pytest.raises(BudgetExhausted, match=r"0\.00004 of .* could take 0\.00005;"):
        run_virtually(client.call(request()))


@pytest.mark.parametrize(
    "kind",
    [
        UnavailableError,
        MalformedError,
        RateLimitedError,
        partial(RateLimitedError, retry_after_s=0.0),
        partial(OverloadedError, status=503),
    ],
)
def test_failures_that_may_end_are_retried(
    kind: Callable[[str], LLMError],
) -> None:
    fake = Fake(lambda r: kind("x"), latency_s=lambda r: 0.0)
    client = Client(fake, retries=3)
    with pytest.raises(type(kind("x")), match=r"^x \(4 attempts\)$"):
        run_virtually(client.call(request()))
    times = [when for when, _ in fake.sent]
    pauses = [later - when for when, later in pairwise(times)]
    for number, pause in enumerate(pauses):
        assert 0.25 * 2**number <= pause <= 0.5 * 2**number
    usage = client.usage["plan"]
    assert (usage.calls, usage.retries, usage.failures) == (0, 3, 1)


@pytest.mark.parametrize(
    "answer",
    [
        "hi",
        Completion("hi", -3, 1, "stop"),
        Completion("hi", 3, 1.5, "stop"),  # type: ignore[arg-type]
        Completion(5, 3, 1, "stop"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_is_no_answer_is_refused(answer: Any) -> None:
    fake = Fake(lambda r: answer)
    client = Client(fake, max_tokens=100_000)
    with pytest.raises(LLMError, match=r"fake model at .* answered with .*; it should be a Comple"):
        run_virtually(client.call(request()))
    assert len(fake.sent) == 1
    assert client.usage["plan"].failures == 1
    assert client.gate.in_flight == 0


def test_a_backend_whose_complete_is_plain_is_refused() -> None:
    class Plain(Fake):
        def complete(self, request: Request) -> Any:
            return Completion("hi", 3, 1, "stop")

    client = Client(Plain(lambda r: None))
    with pytest.raises(LLMError, match=r"Plain.complete is a plain function; it should be an asy"):
        run_virtually(client.call(request()))


def test_lasting_failures_are_not_retried() -> None:
    fake = Fake(lambda r: RefusedError("no such model"))
    with pytest.raises(RefusedError, match="no such model"):
        run_virtually(Client(fake).call(request()))
    assert len(fake.sent) == 1


def test_retry_after_holds_all_calls() -> None:
    answers = iter([RateLimitedError("slow down", 20.0)])
    fake = Fake(lambda r: next(answers, Completion("", 1, 1, "stop")))
    requests = [(request(), 0.0), (request(), 5.0), (request(), 30.0)]
    run_virtually(ask_all(Client(fake), requests))
    assert [when for when, _ in fake.sent] == [0, 21, 21, 30]


def test_a_retry_after_beyond_the_time_out_is_not_waited_for() -> None:
    fake = Fake(lambda r: RateLimitedError("come back tomorrow", 86_400.0))
    requests = [(request(), 0.0), (request(), 5.0)]
    for answer in run_virtually(ask_all(Client(fake), requests)):
        assert isinstance(answer, RateLimitedError)
        assert str(answer) == "come back tomorrow"
    assert [when for when, _ in fake.sent] == [0, 5]


def test_a_hanging_call_times_out() -> None:
    fake = Fake(latency_s=lambda r: 1e9)

    async def ask() -> float:
        with pytest.raises(TimedOutError) as raised:
            await Client(fake, timeout_s=30, retries=2).call(request())
        assert str(raised.value) == (
            "fake model at http://nowhere gave no answer within 30 s to plan of 'agent 3' at step "
            "14 (3 attempts)"
        )
        return asyncio.get_running_loop().time()

    assert 90 < run_virtually(ask()) < 92
    assert fake.in_flight == 0


def test_a_cancelled_call_releases_its_turn() -> None:
    fake = Fake(latency_s=lambda r: 100.0)
    client = Client(fake, concurrency=1)

    async def ask() -> None:
        tasks = [asyncio.create_task(client.call(request(agent=agent))) for agent in range(3)]
        await asyncio.sleep(1)
        tasks[1].cancel()  # while it waits
        tasks[0].cancel()  # while it is sent
        await tasks[2]

    run_virtually(ask())
    assert [r.agent for _, r in fake.sent] == [0, 2]
    assert client.gate.in_flight == 0


def test_answers_paid_for_are_not_bought_again(tmp_path: Path) -> None:
    fake = Fake()
    first = Journal(tmp_path / "journal")
    bought = run_virtually(Client(fake, journal=first).call(request()))
    first.close()
    again = Client(fake, journal=Journal(tmp_path / "journal"))
    assert run_virtually(again.call(request())) == bought
    assert len(fake.sent) == 1
    assert again.usage["plan"].reused == 1
    run_virtually(again.call(request(occurrence=1)))
    assert len(fake.sent) == 2


def test_the_answer_is_in_the_journal_before_the_agent_has_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def ask() -> None:
        await Client(Fake(), journal=Journal(path)).call(request())
        assert path.read_bytes().count(b"\n") == 2

    run_virtually(ask())


def test_a_stream_fails_for_good_after_its_first_piece() -> None:
    class Breaking(Fake):
        async def stream(self, request: Request):  # type: ignore[no-untyped-def]
            self.sent.append((0.0, request))
            yield "one "
            raise MalformedError("broke off")

    fake = Breaking()
    pieces: list[object] = []

    async def ask() -> None:
        async for piece in Client(fake).stream(request()):
            pieces.append(piece)

    with pytest.raises(MalformedError, match="broke off"):
        run_virtually(ask())
    assert pieces == ["one "]
    assert len(fake.sent) == 1


def test_usage_is_kept_by_function() -> None:
    client = Client(Fake(), prices=Prices(2.0, 10.0))

    async def ask() -> None:
        for function in ("plan", "plan", "converse"):
            await client.call(request(function=function))

    run_virtually(ask())
    plan = client.usage["plan"]
    assert (plan.calls, plan.prompt_tokens, plan.output_tokens) == (2, 10, 14)
    assert plan.cost == pytest.approx((10 * 2 + 14 * 10) / 1e6)
    assert (plan.latency_s, plan.latency_max_s, plan.mean_latency_s) == (2, 1, 1)
    assert client.total.calls == 3


def away_until(back_s: float) -> Fake:
    def answer(_request: Request) -> Completion | Exception:
        if asyncio.get_running_loop().time() < back_s:
            return UnreachableError("nobody there")
        return Completion("here", 1, 1, "stop")

    return Fake(answer, latency_s=lambda r: 0.01)


@pytest.mark.parametrize("away_s", [1.0, 60.0, 290.0])
def test_an_unreachable_server_is_waited_for(
    away_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client(away_until(away_s), retries=0)

    async def ask() -> float:
        await asyncio.gather(*(client.call(request(agent=i)) for i in range(20)))
        return asyncio.get_running_loop().time()

    assert away_s <= run_virtually(ask()) <= away_s + 6
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if away_s < 2 else 2)
    if lines:
        assert "nobody there; waiting up to 300 s for it" in lines[0]
        assert "answers again" in lines[1]


def test_patience_is_limited() -> None:
    async def ask() -> float:
        with pytest.raises(UnreachableError, match="nobody there"):
            await Client(away_until(1e9), retries=1, patience_s=30).call(request())
        return asyncio.get_running_loop().time()

    assert 30 <= run_virtually(ask()) <= 40
