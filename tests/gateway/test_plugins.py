"""Faulty plug-ins in the gateway: what they may break and what not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.types import MetropolisError
from tests.gateway.engines import StubEngine, answer_to, chat, gateway_before, until
from tests.gateway.test_server import post


class Overfed(Fcfs):
    """Fails at the end of one program."""

    def program_ended(self, program: str) -> None:
        if program == "much":
            raise RecursionError("it is too long")


class Unteachable(Fcfs):
    """Fails at every completion."""

    def completed(self, served: ServedRequest) -> None:
        raise ZeroDivisionError


def test_an_answer_of_which_nothing_could_be_learned_is_an_answer() -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(StubEngine(), policy=Unteachable(), log=news.append) as (
            url,
            gateway,
        ):
            last = {"X-Metropolis-Program": "p", "X-Metropolis-End": "true"}
            for _ in range(2):
                status, answer, _ = await post(url, chat("x"), headers=last)
                assert (status, answer) == (200, answer_to("x"))
            assert len(gateway.programs) == 0
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())
    (fault,) = [one for one in news if "Unteachable" in one]  # reported once
    assert fault.startswith(f"the policy Unteachable failed in completed: {__file__}:")
    assert fault.endswith("ZeroDivisionError; fix it there")


class Unforgetting(Fcfs):
    """Fails at every cancellation."""

    def cancelled(self, request: QueuedRequest) -> None:
        raise ZeroDivisionError

    def completed(self, served: ServedRequest) -> None:
        raise ZeroDivisionError


def test_faults_keep_no_place_and_hide_no_answer() -> None:
    async def ask() -> None:
        engine, made = StubEngine(), list[LeastLoaded]()

        def dispatcher(fleet: Fleet) -> LeastLoaded:
            made.append(LeastLoaded(fleet))
            return made[0]

        async with gateway_before(engine, policy=Unforgetting(), dispatcher=dispatcher) as (
            url,
            gateway,
        ):
            for status in (404, 200):
                engine.status = status
                assert (await post(url, chat("x")))[:2] == (status, answer_to("x"))
                assert (gateway.scheduling.in_flight, made[0]._in_flight) == ([0], [0])
            assert {key[-1]: n for key, n in gateway.metrics.requests.items()} == {404: 1, 200: 1}

    asyncio.run(ask())


class Unstarted(Fcfs):
    """Fails at every start."""

    def started(self, request: QueuedRequest, now_s: float) -> None:
        raise ZeroDivisionError


def test_a_request_is_answered_though_the_policy_fails_when_it_is_told_that_it_runs() -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(StubEngine(), policy=Unstarted(), log=news.append) as (
            url,
            gateway,
        ):
            assert (await post(url, chat("x")))[:2] == (200, answer_to("x"))
            assert gateway.scheduling.in_flight == [0]
            assert len(gateway.scheduling) == 0

    asyncio.run(ask())
    assert news[-1].startswith("the policy Unstarted failed in started: ")


class Timeless(Fcfs):
    """Fails whenever time passes, once `fails` is set."""

    fails = False

    def passed(self, now_s: float) -> None:
        if self.fails:
            raise MetropolisError("what is time?")


def test_no_request_hangs_when_the_policy_fails_as_time_passes() -> None:
    news: list[str] = []

    async def ask() -> None:
        engine, policy = StubEngine(), Timeless()
        engine.open.clear()
        async with gateway_before(engine, policy=policy, at_once=1, log=news.append) as (
            url,
            gateway,
        ):
            asked = [asyncio.create_task(post(url, chat(str(n)))) for n in range(3)]
            await until(lambda: len(gateway.scheduling) == 2)
            policy.fails = True
            engine.open.set()
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200, 500, 500]
            assert {message_of(answer) for status, answer, _ in answers if status == 500} == {
                news[-1]
            }
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())
    sentence = f"the policy Timeless failed in passed: {__file__}:"
    (fault,) = [one for one in news if one.startswith(sentence)]
    assert fault.endswith(": what is time?")


class Stumbling(Fcfs):
    """Fails the next time that time passes, once `fails` is set."""

    fails = False

    def passed(self, now_s: float) -> None:
        if self.fails:
            self.fails = False
            raise ZeroDivisionError


def test_a_fault_stops_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.proxy.SWEEP_S", 0.01)

    async def ask() -> None:
        policy = Stumbling()
        async with gateway_before(StubEngine(), policy=policy, idle_s=0.05) as (url, gateway):
            policy.fails = True
            await until(lambda: not policy.fails)
            await post(url, chat("x"), headers={"X-Metropolis-Program": "p"})
            await until(lambda: len(gateway.programs) == 0)

    asyncio.run(ask())


class Remembering(LeastLoaded):
    """Records the programs that have ended."""

    ended: list[str]

    def program_ended(self, program: str) -> None:
        self.ended.append(program)


def test_one_programs_end_spoils_no_answer_and_no_other_programs_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []
    news: list[str] = []
    monkeypatch.setattr(Remembering, "ended", ended, raising=False)
    monkeypatch.setattr("metropolis.gateway.proxy.SWEEP_S", 0.01)

    async def ask() -> None:
        engine = StubEngine()
        options = {"policy": Overfed(), "dispatcher": Remembering, "idle_s": 0.01}
        options["log"] = news.append
        async with gateway_before(engine, **options) as (url, gateway):  # type: ignore[arg-type]
            last = {"X-Metropolis-Program": "much", "X-Metropolis-End": "true"}
            status, answer, _ = await post(url, chat("last"), headers=last)
            assert (status, answer) == (200, answer_to("last"))
            for program in ("much", "later"):  # these end by being idle
                await post(url, chat("x"), headers={"X-Metropolis-Program": program})
                await until(lambda: len(gateway.programs) == 0)

    asyncio.run(ask())
    assert ended == ["much", "much", "later"]
    (fault,) = [one for one in news if "Overfed" in one]
    assert fault.startswith(f"the policy Overfed failed in program_ended: {__file__}:")
    assert fault.endswith("RecursionError: it is too long; fix it there")


class Halved(Fcfs):
    """Returns a rank that is no integer."""

    def rank(self, request: QueuedRequest) -> int:
        return 0.5  # type: ignore[return-value]


class Failing(Fcfs):
    """Fails to rank."""

    def rank(self, request: QueuedRequest) -> int:
        raise KeyError("x")


class Lost(LeastLoaded):
    """Fails to place."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        raise KeyError("x")


@pytest.mark.parametrize(
    ("options", "plugin"),
    [
        ({"policy": Failing()}, "policy Failing failed in rank"),
        ({"dispatcher": Lost}, "dispatcher Lost failed in place"),
    ],
)
def test_what_a_plug_in_raises_is_told_with_its_line_and_not_logged_again(
    options: dict[str, Any], plugin: str, caplog: pytest.LogCaptureFixture
) -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(StubEngine(), log=news.append, **options) as (url, gateway):
            for _ in range(2):
                status, answer, _ = await post(url, chat("x"))
                assert (status, message_of(answer)) == (500, news[-1])
            assert gateway.scheduling.in_flight == [0]
            assert len(gateway.scheduling) == 0

    asyncio.run(ask())
    assert f"the {plugin}: {__file__}:" in news[-1]
    assert news[-1].endswith("KeyError: 'x'; fix it there")
    assert len(news) == 2
    assert "Traceback" not in caplog.text


class Whimsical(Fcfs):
    """Returns valid ranks while `is_good`, then negative ones."""

    is_good = True

    def rank(self, request: QueuedRequest) -> int:
        return 0 if self.is_good else -1


class Astray(LeastLoaded):
    """Places requests validly only for the function `x`."""

    instance = 99

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        return super().place(request, now_s) if request.function == "x" else self.instance


class Hesitant(LeastLoaded):
    """Holds all requests back."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        return None


def message_of(answer: bytes) -> str:
    return str(json.loads(answer)["error"]["message"])


def test_a_rank_that_is_none_is_told_with_its_policy() -> None:
    news: list[str] = []

    async def ask() -> None:
        async with gateway_before(StubEngine(), policy=Halved(), log=news.append) as (
            url,
            gateway,
        ):
            for _ in range(2):
                status, answer, _ = await post(url, chat("x"))
                assert status == 500
                assert message_of(answer) == news[-1]
            assert gateway.scheduling.in_flight == [0]

    asyncio.run(ask())
    sentence = "the policy Halved returned the rank 0.5; a rank is an int"
    assert [one.startswith(sentence) for one in news] == [False, True]


def test_a_policy_that_ranks_badly_later_lets_no_request_hang() -> None:
    async def ask() -> None:
        engine, policy = StubEngine(), Whimsical()
        engine.open.clear()
        async with gateway_before(engine, policy=policy, at_once=1) as (url, gateway):
            asked = [asyncio.create_task(post(url, chat(str(n)))) for n in range(3)]
            await until(lambda: len(gateway.scheduling) == 2)
            policy.is_good = False
            policy.version += 1
            gateway.scheduling.carry_out()
            policy.is_good = True
            engine.open.set()
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200, 500, 500]
            assert (await post(url, chat("x")))[0] == 200

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("instance", "fault"),
    [
        (99, "the instance 99; instances are 0 to 1"),
        ("0", "the instance '0'; instances are 0 to 1"),
        (-1, "the instance -1; instances are 0 to 1"),
    ],
)
def test_an_instance_that_does_not_exist_is_told_with_its_dispatcher(
    monkeypatch: pytest.MonkeyPatch, instance: int, fault: str
) -> None:
    monkeypatch.setattr(Astray, "instance", instance)

    async def ask() -> None:
        engines = StubEngine(), StubEngine()
        async with gateway_before(*engines, dispatcher=Astray) as (url, gateway):
            status, answer, _ = await post(url, chat("y"))
            assert (status, message_of(answer)) == (
                500,
                f"the dispatcher Astray placed a request on {fault}",
            )
            named = {"X-Metropolis-Function": "x"}
            assert (await post(url, chat("x"), headers=named))[0] == 200
            assert gateway.scheduling.in_flight == [0, 0]

    asyncio.run(ask())


def test_a_closed_instance_takes_nothing() -> None:
    async def ask() -> None:
        engines = StubEngine(), StubEngine()
        engines[0].look_status = 503

        class Fixed(Astray):
            instance = 0

        async with gateway_before(*engines, dispatcher=Fixed) as (url, _):
            status, answer, _ = await post(url, chat("y"))
            assert status == 500
            assert "placed a request on instance 0, which is closed" in message_of(answer)

    asyncio.run(ask())


def test_a_dispatcher_that_always_holds_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.proxy.SWEEP_S", 0.01)
    monkeypatch.setattr("metropolis.gateway.scheduler_driver.DEFERRAL_MAX_S", 0.1)
    news: list[str] = []

    async def ask() -> None:
        options = {"dispatcher": Hesitant, "log": news.append}
        async with gateway_before(StubEngine(), **options) as (url, gateway):  # type: ignore[arg-type]
            answers = await asyncio.gather(*(post(url, chat(str(n))) for n in range(2)))
            assert [status for status, _, _ in answers] == [500, 500]
            assert {message_of(answer) for _, answer, _ in answers} == {news[-1]}
            assert len(gateway.scheduling) == 0

    asyncio.run(ask())
    assert len(news) == 2
    assert news[-1].startswith("the dispatcher Hesitant defers 2 requests")
