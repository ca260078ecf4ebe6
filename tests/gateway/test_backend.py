"""The in-process gateway: it meets the interface of backends, and worlds run with it."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import metropolis.gateway.backend
from metropolis.bench import METROPOLIS
from metropolis.bench.stub_server import stub_server
from metropolis.cli.run import command
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.programs import ProgramTracker
from metropolis.llm.base import RateLimitedError, RefusedError, UnreachableError
from metropolis.llm.check import check_backend
from metropolis.llm.client import Client
from metropolis.policy.fixed import StepFirst
from metropolis.timeline.reader import read_timeline
from metropolis.types import MetropolisError
from tests.gateway.engines import StubEngine, answer_to, until
from tests.llm.fakes import request
from tests.llm.faults import FaultyServer

CHAT = ({"role": "user", "content": "why"},)


def before(*urls: str, log: Callable[[str], None] = lambda _: None) -> LocalGateway:
    return LocalGateway(
        urls, StepFirst(), RoundRobin(Fleet.uniform(len(urls), 1000, 10.0)), log=log
    )


@pytest.mark.parametrize("owned_by", ["sglang", "vllm"])
def test_it_keeps_a_backends_promises(owned_by: str) -> None:
    async def run() -> None:
        async with FaultyServer(owned_by=owned_by) as one, FaultyServer(owned_by=owned_by) as two:
            backend = before(one.url, two.url)
            await check_backend(backend)
            assert backend.name == "tiny"
            assert str(backend) == f"the gateway before {one.url}, {two.url}"
            assert one.requests
            assert two.requests
            assert backend.gateway.scheduling.in_flight == [0, 0]
            await backend.close()

    asyncio.run(run())


def test_a_call_carries_its_program_function_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-process gateway gets them; its engine does not."""
    came: list[Any] = []
    enter = ProgramTracker.enter

    def noted(self: ProgramTracker, asked: Any, now_s: float) -> Any:
        came.append(asked)
        return enter(self, asked, now_s)

    monkeypatch.setattr(ProgramTracker, "enter", noted)

    async def run() -> None:
        engine = StubEngine()
        backend = before(await engine.start())
        await backend.check()
        answer = await backend.complete(request(messages=CHAT, step=7, function="plan"))
        assert answer.text == json.loads(answer_to("why"))["choices"][0]["message"]["content"]
        (headers,) = engine.headers
        assert not [name for name in headers if name.startswith("X-Metropolis-")]
        (asked,) = came
        assert (asked.program, asked.function, asked.step) == ("agent 3 at 7", "plan", 7)
        await backend.close()
        await engine.kill()

    asyncio.run(run())


def test_a_call_goes_to_an_engine_of_its_model() -> None:
    async def run() -> None:
        engines = StubEngine(), StubEngine()
        for engine, model in zip(engines, ("base", "chat"), strict=True):
            engine.models = [model]
        urls = [await engine.start() for engine in engines]
        dispatcher = RoundRobin(Fleet.uniform(2, 1000, 10.0))
        wrong = LocalGateway(urls, StepFirst(), dispatcher, "base", ["cat"])
        with pytest.raises(RefusedError, match="has no model 'cat'; it serves base, chat"):
            await wrong.check()
        await wrong.close()
        backend = LocalGateway(urls, StepFirst(), dispatcher, "base", ["chat"])
        await backend.check()
        assert backend.name == "base"
        for model in (None, "chat", "chat", None):
            await backend.complete(request(messages=CHAT, model=model))
        assert [[body["model"] for body in engine.bodies] for engine in engines] == [
            ["base", "base"],
            ["chat", "chat"],
        ]
        await backend.close()
        for engine in engines:
            await engine.kill()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (
            "bad request",
            RefusedError,
            "answered plan of 'agent 3' at step 14 with HTTP 400: too long",
        ),
        ("rate limited", RateLimitedError, "HTTP 429: slow down"),
    ],
)
def test_errors_of_engines_are_errors_of_the_backend(
    fault: str, kind: type[Exception], sentence: str
) -> None:
    async def run() -> None:
        async with FaultyServer(lambda _: fault) as engine:
            backend = before(engine.url)
            await backend.check()
            with pytest.raises(kind, match=sentence) as raised:
                await backend.complete(request(messages=CHAT))
            assert str(raised.value).startswith("the gateway before http://")
            told = re.search(r"HTTP (\d+)", str(raised.value))
            if told:  # the engine's answer, which is counted
                (counted,) = backend.gateway.metrics.requests
                assert counted[-1] == int(told[1])
            await backend.close()

    asyncio.run(run())


def test_engines_get_their_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `metropolis gateway`; an engine without one gets the client's key."""
    monkeypatch.setenv("OPENAI_API_KEY", "clients")
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY_2", "second")

    async def keys() -> list[set[str | None]]:
        async with FaultyServer() as one, FaultyServer() as two:
            backend = before(one.url, two.url)
            await backend.check()
            for step in range(4):
                await backend.complete(request(messages=CHAT, step=step))
            await backend.close()
            return [{each.get("Authorization") for each in engine.headers} for engine in (one, two)]

    assert asyncio.run(keys()) == [{"Bearer clients"}, {"Bearer second"}]
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY", "all")
    assert asyncio.run(keys()) == [{"Bearer all"}, {"Bearer second"}]
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY", "two words")
    options = ["social", "--engine", "http://127.0.0.1:1", "--steps", "1"]
    told = CliRunner().invoke(command, options)
    assert isinstance(told.exception, MetropolisError)
    assert str(told.exception).startswith("METROPOLIS_ENGINE_KEY: write a key")


def test_it_cannot_go_to_other_processes() -> None:
    with pytest.raises(MetropolisError, match="start `metropolis gateway`"):
        pickle.dumps(before("http://127.0.0.1:1"))


def test_a_world_runs_before_two_engines(tmp_path: Path) -> None:
    async def run() -> None:
        async with FaultyServer() as one, FaultyServer() as two:
            options = ["social", "--engine", one.url, "--engine", two.url, "--steps", "3"]
            options += ["--policy", "step+kairos", "--dispatcher", "round_robin", "--quiet"]
            process = await asyncio.create_subprocess_exec(
                *METROPOLIS, "run", *options, "--out", str(tmp_path / "run"),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()
            assert len(one.requests) > 3
            assert abs(len(one.requests) - len(two.requests)) <= 1

    asyncio.run(run())
    calls = read_timeline(tmp_path / "run").calls
    assert set(calls.instance.tolist()) == {0, 1}
    assert (calls.sent_s <= calls.started_s).all()
    assert (calls.started_s < calls.completed_s).all()


def test_a_run_tests_an_engine_once(tmp_path: Path) -> None:
    async def run() -> None:
        engine = StubEngine("vllm")
        options = ["minimal", "--steps", "2", "--quiet", "--engine", await engine.start()]
        process = await asyncio.create_subprocess_exec(
            *METROPOLIS, "run", *options, "--out", str(tmp_path / "run"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, news = await process.communicate()
        await engine.kill()
        assert process.returncode == 0, news.decode()
        assert "answers: vLLM, gets priorities" in news.decode()
        assert engine.tested == 1
        assert engine.counted == 1

    asyncio.run(run())


def test_engines_that_die_are_told_and_all_of_them_are_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metropolis.gateway.backend, "NO_ENGINE_S", 0.01)

    async def run() -> None:
        one, two, news = StubEngine(), StubEngine(), list[str]()
        urls = [await one.start(), await two.start()]
        backend = before(*urls, log=news.append)
        client = Client(backend, patience_s=3600)
        await client.check()
        assert sorted(news) == [f"the engine at {url} answers" for url in sorted(urls)]
        two.open.clear()
        asked = [asyncio.create_task(client.call(request(step=step))) for step in range(2)]
        await until(lambda: two.raw)
        await two.kill()  # its request moves to the other one
        assert len(await asyncio.gather(*asked)) == 2
        assert any(said.startswith(f"the engine at {urls[1]} was lost") for said in news)
        one.open.clear()
        sent = len(one.raw)
        waiting = asyncio.create_task(client.call(request(step=3)))
        await until(lambda: len(one.raw) > sent)
        await one.kill()
        with pytest.raises(UnreachableError) as raised:
            await backend.complete(request(step=4))
        for url in urls:
            cause = rf"the engine at {url} (cannot be reached for the check|was lost): \[?\w+"
            assert re.search(cause, str(raised.value))
        with pytest.raises(UnreachableError, match=r"^no engine answers: the engine at .*; the"):
            await Client(backend, patience_s=0, retries=0).call(request(step=5))
        one.open.set()
        await one.start()
        assert (await waiting).text
        assert news[-1] == f"the engine at {urls[0]} answers"
        assert backend.gateway.scheduling.in_flight == [0, 0]
        assert len(backend.gateway.scheduling) == 0
        await client.close()
        await one.kill()

    asyncio.run(run())


def test_a_run_before_engines_that_are_all_dead_names_them_and_the_cause(tmp_path: Path) -> None:
    options = ["minimal", "--out", str(tmp_path / "run")]
    for port in (1, 2):
        options += ["--engine", f"http://127.0.0.1:{port}"]
    result = CliRunner().invoke(command, options, standalone_mode=False)
    assert isinstance(result.exception, MetropolisError)
    assert re.fullmatch(
        r"no engine answers: the engine at http://127.0.0.1:1 cannot be reached .*refused; "
        r"the engine at http://127.0.0.1:2 cannot be reached .*refused",
        str(result.exception),
    )
    assert not (tmp_path / "run").exists()


def test_a_run_tells_which_engines_answer(tmp_path: Path) -> None:
    with stub_server(0.0, 0) as url:
        options = ["minimal", "--steps", "2", "--quiet", "--out", str(tmp_path / "run")]
        options += ["--engine", url, "--engine", "http://127.0.0.1:1"]
        result = CliRunner().invoke(command, options, standalone_mode=False)
    assert result.exception is None
    assert result.output.count(f"metropolis: the engine at {url} answers") == 1
    assert result.output.count("metropolis: the engine at http://127.0.0.1:1 cannot be") == 1


def test_a_gateway_is_no_part_of_a_run_in_a_store() -> None:
    options = ["minimal", "--engine", "http://127.0.0.1:1", "--store", "embedded"]
    result = CliRunner().invoke(command, options, standalone_mode=False)
    assert isinstance(result.exception, MetropolisError)
    assert "omit --llm and --store" in str(result.exception)


@pytest.mark.parametrize("way", ["--llm", "--engine"])
def test_a_run_leaves_seeds_out_if_told_so(tmp_path: Path, way: str) -> None:
    async def run() -> None:
        async with FaultyServer() as server:
            process = await asyncio.create_subprocess_exec(
                *METROPOLIS, "run", "social", "--steps", "1", "--no-llm-seed",
                "--quiet", "--out", str(tmp_path / "run"), way, server.url,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()
            assert server.requests
            assert not any("seed" in body for _, body in server.requests)

    asyncio.run(run())
