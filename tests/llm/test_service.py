"""Where a call was served is known to the run, and is no part of its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from metropolis.llm.base import Completion, Request, Service
from metropolis.llm.call_log import CallLog, CallRecord
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from tests.llm.fakes import Fake, request

PLAIN, SERVICE = Completion("walk", 3, 1, "stop"), Service(2, 0.5)
SERVED = PLAIN.with_service(SERVICE)


def test_answers_are_equal_with_and_without_it() -> None:
    assert SERVED.service == SERVICE
    assert PLAIN.service is None
    assert SERVED == PLAIN
    assert repr(SERVED) == repr(PLAIN)
    assert msgspec.json.encode(SERVED) == msgspec.json.encode(PLAIN)


def test_an_answer_that_was_paid_for_before_has_none(tmp_path: Path) -> None:
    def answer(_: Request) -> Completion:
        return SERVED

    async def run() -> list[Service | None]:
        client = Client(Fake(answer, lambda _: 0.0), journal=Journal(tmp_path / "journal"))
        found = [(await client.call(request())).service for _ in range(2)]
        await client.close()
        return found

    assert asyncio.run(run()) == [SERVICE, None]


def test_a_record_has_its_start_on_the_log_s_clock() -> None:
    now_s = 10.0
    log = CallLog(lambda: now_s)
    for duration_s, started_s in ((0.5, 11.5), (9.0, 10.0)):  # no start before the call was sent
        now_s = 10.0
        index = log.add(0, (), 0, "plan", "model", None)
        now_s = 12.0
        record = log.end(index, PLAIN.with_service(Service(2, duration_s)))
        assert (record.instance, record.started) == (2, started_s)


def test_it_is_not_in_files() -> None:
    with_it, without = (CallRecord("plan", "model", (), 1.0) for _ in range(2))
    with_it.note_service(3, 1.5)
    assert with_it == without
    assert msgspec.json.encode(with_it) == msgspec.json.encode(without)
    read = msgspec.json.decode(msgspec.json.encode(with_it), type=CallRecord)
    assert (read.instance, read.started) == (None, None)
