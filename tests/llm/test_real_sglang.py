"""The SGLang backend with a real SGLang, which serves a tiny random model one call at a time."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from metropolis.llm import LLM, Client, Completion, LLMError, RefusedError
from metropolis.llm.backends.sglang import STEPS_PER_PRIORITY, SGLang
from metropolis.llm.connect import connect
from tests.llm.fakes import request
from tests.llm.faults import FaultyServer

CHAT = ({"role": "system", "content": "You are Ada."}, {"role": "user", "content": "hello"})
KINDS: dict[str, dict[str, Any]] = {"chat": {"messages": CHAT}, "prompt": {"prompt": "def f("}}
SCHEMA = {
    "type": "object",
    "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
    "required": ["hour"],
}
Ask = Callable[[SGLang], Coroutine[Any, Any, Any]]


@pytest.fixture
def using(sglang_url: str) -> Callable[[Ask], Any]:
    def run(ask: Ask) -> Any:
        async def asking() -> Any:
            backend = SGLang(sglang_url)
            try:
                return await ask(backend)
            finally:
                await backend.close()

        return asyncio.run(asking())

    return run


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


def test_a_bare_address_turns_out_to_be_sglang(sglang_url: str) -> None:
    backend = connect(sglang_url)
    assert isinstance(backend, SGLang)

    async def check() -> None:
        await backend.check()
        with pytest.raises(RefusedError, match="has no model 'huge'"):
            await SGLang(sglang_url, "huge").check()
        await backend.close()

    asyncio.run(check())
    assert backend.name == "tiny"


def test_an_answer_is_counted(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    answer = using(lambda backend: backend.complete(request(max_tokens=9, **kind)))
    assert answer.text
    assert answer.prompt_tokens > 2
    assert 1 <= answer.output_tokens <= 9
    assert answer.finish_reason == ("length" if answer.output_tokens == 9 else "stop")


def test_a_regex_is_followed(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    sent = request(regex="(yes|no), [0-9]{3}", temperature=1.0, max_tokens=30, **kind)
    answer = using(lambda backend: backend.complete(sent))
    assert re.fullmatch("(yes|no), [0-9]{3}", answer.text)


def test_a_schema_is_followed(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    sent = request(json_schema=SCHEMA, temperature=1.0, max_tokens=60, **kind)
    answer = using(lambda backend: backend.complete(sent))
    assert 0 <= answer.json()["hour"] <= 23


def test_stop_ends_the_answer(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    async def ask(backend: SGLang) -> tuple[Completion, Completion]:
        whole = await backend.complete(request(temperature=0.0, **kind))
        middle = whole.text[len(whole.text) // 2 :][:4]
        cut = await backend.complete(request(temperature=0.0, stop=(middle,), **kind))
        assert cut.text == whole.text[: whole.text.index(middle)]
        return whole, cut

    whole, cut = using(ask)
    assert cut.finish_reason == "stop"
    assert cut.output_tokens < whole.output_tokens


def test_a_stream_is_the_answer_in_pieces(
    using: Callable[[Ask], Any], kind: dict[str, Any]
) -> None:
    sent = request(temperature=0.0, **kind)

    async def ask(backend: SGLang) -> tuple[Completion, list[str | Completion]]:
        return await backend.complete(sent), [item async for item in backend.stream(sent)]

    whole, (*pieces, last) = using(ask)
    assert len(pieces) > 3
    assert "".join(pieces) == last.text == whole.text
    assert (last.prompt_tokens, last.output_tokens) == (whole.prompt_tokens, whole.output_tokens)


def test_greedy_answers_are_equal(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    """Seeds are honoured only under --enable-deterministic-inference, which no CPU backend has."""
    sent = request(temperature=0.0, **kind)

    async def ask(backend: SGLang) -> list[Completion]:
        return await asyncio.gather(*(backend.complete(sent) for _ in range(4)))

    assert len({answer.text for answer in using(ask)}) == 1


def test_unsupported_requests_are_refused(
    using: Callable[[Ask], Any], sglang_url: str, kind: dict[str, Any]
) -> None:
    sent = request(max_tokens=50_000, **kind)
    with pytest.raises(RefusedError, match="HTTP 400") as raised:
        using(lambda backend: Client(backend).call(sent))
    assert str(raised.value).startswith(f"SGLang at {sglang_url}")
    assert "plan of 'agent 3' at step 14" in str(raised.value)


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    # SGLang counts running and waiting requests once with the rank of its process and once without.
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{")]
    return max(values, default=0.0)


def test_a_cancelled_call_frees_the_server(
    using: Callable[[Ask], Any], sglang_url: str, kind: dict[str, Any]
) -> None:
    before = metric(sglang_url, "sglang:num_aborted_requests_total")

    async def ask(backend: SGLang) -> None:
        endless = request(max_tokens=6000, temperature=0.0, **kind)
        long = asyncio.create_task(backend.complete(endless))
        await asyncio.sleep(0.5)
        assert not long.done()
        long.cancel()
        await backend.complete(request(regex="[a-z]{5}", **kind))  # takes the only slot

    using(ask)
    assert metric(sglang_url, "sglang:num_aborted_requests_total") == before + 1


def test_the_lowest_step_goes_first(
    using: Callable[[Ask], Any], sglang_url: str, kind: dict[str, Any]
) -> None:
    steps = [STEPS_PER_PRIORITY * place for place in (7, 2, 5, 0, 9, 4)]
    order: list[int] = []

    async def ask(backend: SGLang) -> None:
        async def one(step: int, speculative: bool = False) -> None:
            await backend.complete(request(priority=step, speculative=speculative, **kind))
            order.append(-1 if speculative else step)

        first = backend.stream(request(priority=0, max_tokens=600, temperature=0.0, **kind))
        await anext(first)  # it has the only slot
        waiting = asyncio.gather(one(0, speculative=True), *map(one, steps))
        async for _ in first:
            assert not order
        await waiting

    using(ask)
    assert order == [*sorted(steps), -1]


@pytest.mark.parametrize("spec", ["compatible", "openai"])
def test_its_openai_route_serves_the_other_backends(
    spec: str, sglang_url: str, kind: dict[str, Any]
) -> None:
    sent = request(temperature=0.0, **kind)

    async def ask() -> tuple[Completion, Completion, list[str | Completion]]:
        native, other = SGLang(sglang_url), connect(f"{spec}:{sglang_url}")
        await other.check()
        whole = await native.complete(sent), await other.complete(sent)
        items = [item async for item in other.stream(sent)]
        await native.close()
        await other.close()
        return *whole, items

    expected, whole, (*pieces, last) = asyncio.run(ask())
    assert whole == last == expected
    assert "".join(map(str, pieces)) == expected.text


def test_concurrent_calls_survive_faults(sglang_url: str) -> None:
    faults = ["error", None, "rate limited", None, "reset", "malformed", None, "cut", None] + [
        None
    ] * 60

    async def ask() -> list[list[str]]:
        async with FaultyServer(lambda n: faults[n], upstream=sglang_url) as proxy:
            client = Client(SGLang(proxy.url), retries=8)

            async def live(agent: int) -> list[str]:
                llm = LLM(client, agent=agent, step=0, seed=1)
                answers = await asyncio.gather(
                    llm.chat("What now?", max_tokens=5, temperature=0.0),
                    llm.complete("def f(", max_tokens=5, temperature=0.0),
                )
                return [answer.text for answer in answers]

            lives = await asyncio.gather(*map(live, range(12)))
            assert client.total.calls == 24
            assert client.total.retries == 5
            await client.close()
            return lives

    lives = asyncio.run(ask())
    assert all(life == lives[0] for life in lives)


def test_a_refused_request_is_an_error_for_the_agent(sglang_url: str) -> None:
    async def ask() -> None:
        client = Client(SGLang(sglang_url))
        llm = LLM(client, agent=1, step=2, seed=3)
        with pytest.raises(LLMError):
            await llm.chat("hello", regex="(")
        await client.close()

    asyncio.run(ask())


def test_an_answer_goes_on_to_its_length(using: Callable[[Ask], Any], kind: dict[str, Any]) -> None:
    sent = request(max_tokens=40, ignore_eos=True, **kind)
    answer = using(lambda backend: backend.complete(sent))
    assert (answer.output_tokens, answer.finish_reason) == (40, "length")
