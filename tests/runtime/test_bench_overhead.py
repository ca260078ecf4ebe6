"""`metropolis bench overhead`: equal waits for all clients, and an ideal from the draws."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import mean

import pytest
from click.testing import CliRunner

from metropolis.bench import overhead
from metropolis.bench.overhead import Load, ideals_s, measure, question_of
from metropolis.bench.stub_server import MODEL, latency_s, stub_server
from metropolis.llm.agent import LLM
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.client import Client


def test_latencies_are_drawn_by_the_prompt() -> None:
    drawn = [latency_s(1, f"question {i}", 0.1) for i in range(4000)]
    assert mean(drawn) == pytest.approx(0.1, rel=0.05)
    assert min(drawn) > 0
    assert len(set(drawn)) == len(drawn)
    assert drawn == [latency_s(1, f"question {i}", 0.1) for i in range(4000)]
    assert drawn[0] != latency_s(2, "question 0", 0.1)
    assert latency_s(1, "question 0", 0.0) == 0.0


def test_the_ideals_are_sums_and_maxima() -> None:
    load = Load("few", 2, 2, 0.5)
    drawn = [
        [latency_s(overhead.SEED, question_of(f"agent {i}", step), 0.5) for step in (0, 1)]
        for i in (0, 1)
    ]
    ideal, barrier = ideals_s(load)
    assert ideal == max(sum(drawn[0]), sum(drawn[1]))
    assert barrier == max(drawn[0][0], drawn[1][0]) + max(drawn[0][1], drawn[1][1])


def test_the_server_waits_as_long_as_was_drawn() -> None:
    async def ask(url: str) -> float:
        client = Client(Compatible(url))
        await client.check()
        assert client.backend.name == MODEL
        began = time.perf_counter()
        answer = await LLM(client, agent=0, step=0, seed=0).chat("how long?")
        took = time.perf_counter() - began
        assert (answer.prompt_tokens, answer.output_tokens) == (12, 6)
        await client.close()
        return took

    with stub_server(0.05, 3) as url:
        assert asyncio.run(ask(url)) >= latency_s(3, "how long?", 0.05)


def test_every_way_makes_every_call() -> None:
    load = Load("tiny", 6, 2, 0.01)
    runs: list[int] = []
    rows = measure(load, 1, runs.append)
    assert [row.way for row in rows] == list(overhead.WAYS)
    assert len(runs) == len(rows)
    for row in rows:  # less would mean that answers were not awaited
        assert row.wall_s >= row.ideal_wall_s > 0
        assert row.barrier_wall_s >= row.ideal_wall_s
        assert row.cpu_ms_per_agent_step > 0


def test_the_command_prints_ours_beside_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "LOADS", (Load("tiny", 3, 2, 0.0),))
    monkeypatch.setattr(overhead, "IDLE_STEPS", 2)
    found = CliRunner().invoke(overhead.command, ["--repetitions", "1", "--json"])
    content = json.loads(found.stdout)
    assert [row["way"] for row in content["loads"]] == list(overhead.WAYS)
    assert content["idle_agent_steps_per_cpu_s"] > 0
    printed = CliRunner().invoke(overhead.command, ["--repetitions", "1"]).stdout
    for name in (*overhead.WAYS, *(peer.name for peer in overhead.PEERS)):
        assert name in printed
    assert "measured on another day on a similar machine" in printed
