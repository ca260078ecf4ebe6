"""The usage that servers report, and the spending on servers that ignore max_tokens."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from metropolis.bench import METROPOLIS
from metropolis.llm import BudgetExhausted, Client, Completion, MalformedError, Prices, Request
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.meter import Meter
from metropolis.llm.base import LLMError, RefusedError
from metropolis.llm.journal import Journal, read_journal
from metropolis.llm.usage import Usage
from tests.llm.fakes import Fake, request
from tests.llm.raw_server import RawServer, answer
from tests.llm.test_answers import CHAT, chat_answer
from tests.llm.virtual_loop import run_virtually

TEXT = "to be, or not to be"  # 19 bytes, 6 tokens as we estimate
ESTIMATES = (2, 6)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 4}, (5, 4)),
        ({"prompt_tokens": 5.0, "completion_tokens": 4e0}, (5, 4)),
        ({"prompt_tokens": 1049, "completion_tokens": 36}, (1049, 36)),
        ({"prompt_tokens": 1050, "completion_tokens": 37}, ESTIMATES),
        ({"prompt_tokens": 0, "completion_tokens": 0}, ESTIMATES),
        ({"prompt_tokens": -5, "completion_tokens": -1}, ESTIMATES),
        ({"prompt_tokens": 1e12, "completion_tokens": 10**30}, ESTIMATES),
        ({"prompt_tokens": 5.5, "completion_tokens": float("inf")}, ESTIMATES),
        ({"prompt_tokens": "5", "completion_tokens": None}, ESTIMATES),
        ({"prompt_tokens": True, "completion_tokens": [{}]}, ESTIMATES),
        ({"prompt_tokens": 5}, (5, 6)),
        ({}, ESTIMATES), (None, ESTIMATES), ([], ESTIMATES), ("many", ESTIMATES), (7, ESTIMATES),
    ],
)  # fmt: skip
def test_an_impossible_usage_is_replaced_and_reported_once(
    usage: Any, counted: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    meter, sent = Meter("the server"), request(prompt="What now?", max_tokens=20)
    for _ in range(3):
        assert meter.counts(usage, TEXT, 0, sent) == counted
    errors = capsys.readouterr().err
    assert errors.count("metropolis: the server gave an impossible usage") == (
        0 if counted not in (ESTIMATES, (5, 6)) else 1
    )


def test_reasoning_counts_although_it_is_not_in_the_text() -> None:
    meter, sent = Meter("the server"), request(max_tokens=20)
    usage = {"prompt_tokens": 5, "completion_tokens": 500}
    assert meter.counts(usage, "", 2000, sent) == (5, 500)
    assert meter.counts(usage, "", 0, sent) == (5, 0)


def test_an_answer_that_is_far_too_long_is_refused() -> None:
    async def run(server: RawServer) -> None:
        async with server:
            client = Client(Compatible(server.url, "tiny"), retries=0)
            with pytest.raises(MalformedError, match="answer of 70,657 bytes or more; 20 tokens"):
                await client.call(request(messages=CHAT, max_tokens=20))
            await client.close()

    asyncio.run(run(RawServer(lambda n: [answer(chat_answer("a" * (65536 + 5120 + 1)))])))


@pytest.mark.parametrize("limits", [{"max_tokens": 10_000}, {"max_cost": 0.01}])
def test_a_server_that_ignores_max_tokens_exceeds_a_budget_by_one_answer_at_most(
    limits: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(call: Request) -> Completion:
        return Completion("", 5, 1000 + call.agent, "length")

    client = Client(Fake(talk), prices=Prices(1.0, 1.0), **limits)

    async def ask() -> list[Completion | BaseException]:
        calls = (client.call(request(agent=agent, max_tokens=20)) for agent in range(200))
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = run_virtually(ask())
    answered = [one for one in answers if isinstance(one, Completion)]
    assert all(isinstance(one, Completion | BudgetExhausted) for one in answers)
    assert 8 <= len(answered) <= 10
    assert client.gate.token_budget.spent <= 10_000 + 1200
    assert client.gate.cost_budget.spent <= 0.01 + 0.0012
    assert client.bought.calls == len(answered)
    errors = capsys.readouterr().err
    assert errors.count("it does not observe max_tokens") == 1


def test_purchases_for_uncommitted_steps_are_in_the_summary(tmp_path: Path) -> None:
    """The budget ends within or soon after step 0: answers of uncommitted steps are charged."""
    text = "The miller has lost 2 geese " * 100
    body = chat_answer(text, prompt_tokens=20, completion_tokens=700)

    async def run() -> dict[str, Any]:
        async with RawServer(lambda n: [answer(body)]) as server:
            options = ["social", "--llm", server.url, "--steps", "9", "--quiet", "--json"]
            options += ["--price-in", "1", "--price-out", "1", "--max-cost", "0.005"]
            process = await asyncio.create_subprocess_exec(
                *METROPOLIS, "run", *options, "--out", str(tmp_path / "run"),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            output, errors = await process.communicate()
            assert process.returncode in (0, 3), errors.decode()
            summary: dict[str, Any] = json.loads(output)
            summary["answers"] = len(server.posts)
            return summary

    summary = asyncio.run(run())
    bought = summary["bought"]
    assert "the budget is exhausted" in summary["stopped"]
    assert bought["answers"] == summary["answers"] >= 5
    assert bought["answers"] > summary["calls"]
    assert bought["output_tokens"] == 700 * bought["answers"]
    assert bought["cost"] == pytest.approx(720e-6 * bought["answers"])
    assert summary["cost"] < bought["cost"] < 0.005 + 720e-6


def test_the_first_call_under_a_budget_goes_alone_and_failures_prove_nothing() -> None:
    fake = Fake(lambda r: MalformedError("odd") if r.agent < 3 else Completion("", 1, 1, "stop"))
    client = Client(fake, retries=0, max_tokens=10**6)

    async def ask() -> None:
        calls = [client.call(request(agent=agent)) for agent in range(20)]
        await asyncio.gather(*calls, return_exceptions=True)

    run_virtually(ask())
    assert [at for at, _ in fake.sent] == [0.0, 1.0, 2.0, 3.0] + [4.0] * 16
    assert issubclass(MalformedError, LLMError)


def test_lost_tokens_count_in_the_budget_of_the_next_start(tmp_path: Path) -> None:
    filtered = RefusedError("content_filter")
    filtered.tokens = (10, 200)
    path, whole = tmp_path / "journal.jsonl", Completion("yes", 5, 7, "stop")
    starts: list[tuple[Completion | Exception, float, float]] = [
        (MalformedError("{"), 1.0, 9.0),
        (filtered, 1.0, 9.0),
        (whole, 9.0, 9.0),  # too late
        (whole, 4.0, 3.0),  # cancelled
        (whole, 1.0, 9.0),
    ]

    async def start(
        reply: Completion | Exception, latency_s: float, patience_s: float, before: Usage
    ) -> Usage:
        client = Client(
            Fake(lambda _: reply, lambda _: latency_s),
            retries=0,
            timeout_s=5,
            max_tokens=10_000,
            prices=Prices(1e6, 2e6),
            journal=Journal(path),
        )
        bought = client.bought
        assert (bought.calls, bought.lost_tokens) == (before.calls, before.lost_tokens)
        assert client.gate.token_budget.spent == before.lost_tokens
        assert client.gate.cost_budget.spent == bought.cost == before.cost
        with suppress(LLMError, TimeoutError):
            await asyncio.wait_for(client.call(request(prompt="Why?")), patience_s)
        await client.close()
        return client.bought

    bought = Usage()
    for case in starts:
        bought = run_virtually(start(*case, bought))
    assert bought.lost_tokens == 210 + 3 * (20 + 20)
    assert bought.cost == 10 + 2 * 200 + 3 * (20 + 2 * 20) + 5 + 2 * 7
    assert bought.calls == len(list(read_journal(path))) == 1
