"""The requests of an agent: seeds, occurrences, parents, records."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm import LLM, BlockingLLM, Client, LLMError, RefusedError
from metropolis.llm.base import Completion
from metropolis.llm.call_log import CallLog
from metropolis.types import MetropolisError
from tests.llm.fakes import Fake
from tests.llm.virtual_loop import run_virtually


def bound(fake: Fake, **changes: object) -> LLM:
    settings = {"agent": 3, "step": 14, "seed": 7} | changes
    return LLM(Client(fake), **settings)  # type: ignore[arg-type]


@given(order=st.permutations(range(6)))
def test_seeds_do_not_depend_on_order(order: list[int]) -> None:
    def seeds(questions: list[int]) -> dict[tuple[str | None, int], int]:
        fake = Fake()
        llm = bound(fake)

        async def ask() -> None:
            await asyncio.gather(*(llm.complete(f"question {q // 2}") for q in questions))

        run_virtually(ask())
        return {(r.prompt, r.occurrence): r.seed for _, r in fake.sent}

    assert seeds(order) == seeds(list(range(6)))
    assert len(set(seeds(order).values())) == 6


def test_seeds_differ_in_every_part_of_their_key() -> None:
    fake = Fake()

    async def ask() -> None:
        await bound(fake).chat("a")
        await bound(fake, agent=4).chat("a")
        await bound(fake, step=15).chat("a")
        await bound(fake, seed=8).chat("a")
        await bound(fake).chat("a", function="b")
        await bound(fake).chat("b")
        await bound(fake).complete("a", function="chat")
        await bound(fake).chat("a")  # the first once more

    run_virtually(ask())
    seeds = [r.seed for _, r in fake.sent]
    assert len(set(seeds)) == len(seeds) - 1
    assert seeds[0] == seeds[-1]
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_parents_are_the_calls_waited_for_and_not_their_ancestors() -> None:
    llm = bound(
        Fake(latency_s=lambda r: {"slow": 5.0}.get(r.prompt or "", 1.0)), log=CallLog(clock)
    )

    async def chain() -> None:
        await llm.complete("c")
        await llm.complete("d")

    async def ask() -> None:
        await llm.complete("a")  # 0
        await llm.complete("b")  # 1, after 0
        await asyncio.gather(llm.complete("slow"), chain())  # 2 and 3 after 1; 4 after 3
        await llm.complete("e")  # 5 after 2 and 4

    run_virtually(ask())
    numbers = [[number for _, number in call.parents] for call in llm.calls]
    assert numbers == [[], [0], [1], [1], [3], [2, 4]]
    assert [call.sent for call in llm.calls] == [0, 1, 2, 2, 3, 7]
    assert [call.completed for call in llm.calls] == [1, 2, 7, 3, 4, 8]
    assert {(call.model, call.prompt_tokens, call.output_tokens) for call in llm.calls} == {
        ("fake", 5, 7)
    }
    assert llm.calls[0].prompt is None


@pytest.mark.parametrize("slow", ["b", "c"])
def test_the_call_that_ends_last_is_upstream(slow: str) -> None:
    fake = Fake(latency_s=lambda r: 5.0 if r.prompt == slow else 1.0)
    llm = bound(fake)

    async def ask() -> None:
        await asyncio.gather(*(llm.complete(name, function=name) for name in "bc"))
        await llm.complete("d")

    run_virtually(ask())
    assert [request.upstream for _, request in fake.sent] == [None, None, slow]


def clock() -> float:
    return asyncio.get_running_loop().time()


def test_texts_are_kept_on_request() -> None:
    llm = bound(Fake(), keep_text=True)
    run_virtually(llm.complete("a"))
    assert (llm.calls[0].prompt, llm.calls[0].completion) == ("a", "to a")


def test_an_agent_can_handle_a_failed_call() -> None:
    llm = bound(Fake(answer=lambda r: RefusedError("no")))

    async def ask() -> None:
        with pytest.raises(LLMError, match="no"):
            await llm.chat("a")

    run_virtually(ask())
    assert llm.calls[0].failed
    assert llm.calls[0].completed is not None


def test_a_chat_can_be_streamed() -> None:
    llm = bound(Fake(answer=lambda r: Completion("one two three", 5, 7, "stop")))

    async def ask() -> list[str]:
        return [piece async for piece in llm.stream("a")]

    assert run_virtually(ask()) == ["one", "two", "three"]
    assert llm.calls[0].output_tokens == 7


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user"}], [{"role": "user", "content": 3}], 5, None, [5], b"hello"]
)
def test_what_is_no_chat_is_refused(messages: list[object]) -> None:
    with pytest.raises(MetropolisError, match="chat"):
        run_virtually(bound(Fake()).chat(messages))  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", [5, None, b"hello", ["hello"]])
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(MetropolisError, match=r"prompt of a completion is .*; it must be a string"):
        run_virtually(bound(Fake()).complete(prompt))  # type: ignore[arg-type]


def test_a_plain_agent_waits_in_its_thread() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    hooks: list[tuple[str, threading.Thread]] = []
    fake = Fake(lambda r: Completion("one two", 5, 7, "stop"), latency_s=lambda r: 0.0)
    llm = BlockingLLM(
        bound(fake),
        loop,
        on_block=lambda: hooks.append(("block", threading.current_thread())),
        on_unblock=lambda: hooks.append(("unblock", threading.current_thread())),
    )
    try:
        assert llm.chat("a", function="greet").text == "one two"
        assert llm.complete("b", max_tokens=3).text == "one two"
        assert hooks == [("block", thread), ("unblock", thread)] * 2
        assert list(llm.stream("c")) == ["one", "two"]
        fake.answer = lambda r: RefusedError("no")
        with pytest.raises(RefusedError, match="no"):
            llm.chat("d")
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert hooks == [("block", thread), ("unblock", thread)] * (len(hooks) // 2)
    assert [call.function for call in llm.calls] == ["greet", "complete", "chat", "chat"]


def test_threads_that_a_plain_agent_starts_end_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    loop = asyncio.new_event_loop()
    llm = BlockingLLM(bound(Fake()), loop)
    llm.thread = threading.get_ident()
    llm.cancel()
    thread = threading.Thread(target=llm.chat, args=("a",))
    thread.start()
    thread.join()
    with pytest.raises(asyncio.CancelledError):
        llm.chat("b")
    loop.close()
    assert not capsys.readouterr().err


def test_a_call_of_a_plain_agent_that_is_cancelled_at_once_ends_in_silence(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    loop = asyncio.new_event_loop()
    llm = BlockingLLM(bound(Fake()), loop)
    llm.thread = threading.get_ident()
    thread = threading.Thread(target=llm.chat, args=("a",))
    thread.start()
    while not llm._calls:
        time.sleep(0.001)
    llm.cancel()
    thread.join()
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    gc.collect()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("method", "option", "sentence"),
    [
        ("chat", "temprature", r"llm\.chat\(\) has no option 'temprature'; did you mean temp"),
        ("complete", "stops", r"llm\.complete\(\) has no option 'stops'; did you mean stop\?"),
        ("stream", "x", r"llm\.stream\(\) has no option 'x'; its options are function, ignore_"),
    ],
)
def test_an_unknown_option_is_named(method: str, option: str, sentence: str) -> None:
    async def ask() -> None:
        llm = LLM(Client(Fake()), agent=0, step=0, seed=1)
        call = getattr(llm, method)("a", **{option: 1})
        with pytest.raises(MetropolisError, match=sentence):
            await (anext(call) if method == "stream" else call)

    asyncio.run(ask())
