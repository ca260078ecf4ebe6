"""Whole runs with a real SGLang that keeps failing: no answer is lost or paid for twice."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metropolis.llm import Backend, Client, LLMError
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.journal import read_journal
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.world.scenario import make_scenario
from tests.llm.faults import FAULTS, FaultyServer

STOPS_MAX = 100


@contextmanager
def in_thread(server: FaultyServer) -> Iterator[FaultyServer]:
    """The server on a separate event loop, because a run has its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize(("world", "agents", "steps"), [("social", 12, 6), ("smallville", 2, 10)])
def test_a_run_with_faults_resumes_to_the_history_of_its_answers(
    world: str, agents: int, steps: int, sglang_url: str, tmp_path: Path
) -> None:
    draw = random.Random(11)
    some = [None] * 30 + [fault for fault in FAULTS if fault != "hang"]
    faults = [draw.choice(some) for _ in range(10_000)]
    out = tmp_path / "run"

    def run(backend: Backend, out: Path, mode: str, resume: bool = False) -> RunResult:
        scenario = make_scenario(world, agents=agents)
        client = Client(backend, timeout_s=120.0, retries=0)
        simulation = Simulation(
            scenario.world, scenario.agents, client, mode=mode, out=out, resume=resume
        )
        return simulation.run(steps)

    with in_thread(FaultyServer(lambda n: faults[n], upstream=sglang_url)) as proxy:
        for stop in range(STOPS_MAX):
            try:
                lived = run(SGLang(proxy.url), out, "out_of_order", resume=stop > 0)
            except LLMError as error:
                assert f"SGLang at {proxy.url}" in str(error)  # noqa: PT017 -- it may not come
            else:
                break
    assert stop > 0
    answers = dict(read_journal(out / "journal.jsonl"))
    answered = sum(faults[n] in (None, "slow") for n in range(len(proxy.requests)))
    assert len(answers) <= answered <= len(answers) + 12 * stop  # cancelled when a run stopped
    replayed = run(Replay(out / "journal.jsonl"), tmp_path / "replayed", "lockstep")
    assert replayed.history_sha256 == lived.history_sha256
