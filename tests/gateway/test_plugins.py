"""Faulty plug-ins behind the gateway: what they break, and what they must not."""

from __future__ import annotations

import asyncio

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import LeastUsed
from metropolis.policy.base import Execution, QueuedRequest
from metropolis.policy.fixed import Fcfs
from tests.gateway.engines import StubEngine, answer_to, chat, gateway_before, until
from tests.gateway.test_server import post


class Overfed(Fcfs):
    """Cannot digest the end of one program."""

    def program_ended(self, program: str) -> None:
        if program == "much":
            raise RecursionError("it is too long")


class Unteachable(Fcfs):
    """Cannot learn."""

    def completed(self, execution: Execution) -> None:
        raise ZeroDivisionError


def test_an_answer_of_which_nothing_could_be_learned_is_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine(), policy=Unteachable()) as (url, gateway):
            last = {"X-Metropolis-Program": "p", "X-Metropolis-End": "true"}
            status, answer, _ = await post(url, chat("x"), headers=last)
            assert (status, answer) == (200, answer_to("x"))
            assert len(gateway.sessions) == 0
            assert gateway.admission.at_work == [0]

    asyncio.run(ask())
    assert "told of an answer" in caplog.text
    assert "ZeroDivisionError" in caplog.text


class Unforgetting(Fcfs):
    """Cannot bear to be left."""

    def withdrawn(self, request: QueuedRequest) -> None:
        raise ZeroDivisionError

    def completed(self, execution: Execution) -> None:
        raise ZeroDivisionError


def test_faults_keep_no_place_and_hide_no_answer() -> None:
    async def ask() -> None:
        engine, made = StubEngine(), list[LeastUsed]()

        def dispatcher(fleet: Fleet) -> LeastUsed:
            made.append(LeastUsed(fleet))
            return made[0]

        async with gateway_before(engine, policy=Unforgetting(), dispatcher=dispatcher) as (
            url,
            gateway,
        ):
            for status in (404, 200):
                engine.status = status
                assert (await post(url, chat("x")))[:2] == (status, answer_to("x"))
                assert (gateway.admission.at_work, made[0]._at_work) == ([0], [0])
            assert {key[-1]: n for key, n in gateway.figures.requests.items()} == {404: 1, 200: 1}

    asyncio.run(ask())


class Unstarted(Fcfs):
    """Fails when something begins."""

    def started(self, request: QueuedRequest, now_s: float) -> None:
        raise ZeroDivisionError


def test_what_could_not_begin_keeps_no_place() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine(), policy=Unstarted()) as (url, gateway):
            assert (await post(url, chat("x")))[0] == 500
            assert gateway.admission.at_work == [0]
            assert len(gateway.admission) == 0

    asyncio.run(ask())


class Stumbling(Fcfs):
    """Fails once when time has passed."""

    fails = False

    def passed(self, now_s: float) -> None:
        if self.fails:
            self.fails = False
            raise ZeroDivisionError


def test_a_fault_stops_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.gateway.relay.SWEEP_S", 0.01)

    async def ask() -> None:
        policy = Stumbling()
        async with gateway_before(StubEngine(), policy=policy, idle_s=0.05) as (url, gateway):
            policy.fails = True
            await until(lambda: not policy.fails)
            await post(url, chat("x"), headers={"X-Metropolis-Program": "p"})
            await until(lambda: len(gateway.sessions) == 0)

    asyncio.run(ask())


class Remembering(LeastUsed):
    """Which programs have ended."""

    ended: list[str]

    def program_ended(self, program: str) -> None:
        self.ended.append(program)


def test_one_programs_end_spoils_no_answer_and_no_other_programs_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(Remembering, "ended", ended, raising=False)
    monkeypatch.setattr("metropolis.gateway.relay.SWEEP_S", 0.01)

    async def ask() -> None:
        engine = StubEngine()
        options = {"policy": Overfed(), "dispatcher": Remembering, "idle_s": 0.01}
        async with gateway_before(engine, **options) as (url, gateway):  # type: ignore[arg-type]
            last = {"X-Metropolis-Program": "much", "X-Metropolis-End": "true"}
            status, answer, _ = await post(url, chat("last"), headers=last)
            assert (status, answer) == (200, answer_to("last"))
            for program in ("much", "later"):  # these end by themselves
                await post(url, chat("x"), headers={"X-Metropolis-Program": program})
                await until(lambda: len(gateway.sessions) == 0)

    asyncio.run(ask())
    assert ended == ["much", "much", "later"]
    told = [record for record in caplog.records if "the program 'much'" in record.getMessage()]
    assert len(told) == 2
    assert all(record.exc_info and "too long" in str(record.exc_info[1]) for record in told)
