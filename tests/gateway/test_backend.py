"""The gateway in a run's own process: it keeps a backend's promises, and worlds run through it."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.cli.run import command
from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import InTurn
from metropolis.gateway.backend import InProcess
from metropolis.llm.base import RateLimitedError, RefusedError
from metropolis.llm.check import check_backend
from metropolis.policy.fixed import StepFirst
from metropolis.types import MetropolisError
from tests.gateway.engines import StubEngine, answer_to
from tests.gateway.test_command import MAIN
from tests.llm.fakes import request
from tests.llm.faults import FaultyServer

CHAT = ({"role": "user", "content": "why"},)


def before(*urls: str) -> InProcess:
    return InProcess(urls, StepFirst(), InTurn(Fleet(len(urls), 1000, 10.0)))


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
            assert backend.gateway.admission.at_work == [0, 0]
            await backend.close()

    asyncio.run(run())


def test_a_call_carries_its_program_function_and_step() -> None:
    async def run() -> None:
        engine = StubEngine()
        backend = before(await engine.start())
        await backend.check()
        answer = await backend.complete(request(messages=CHAT, step=7, function="plan"))
        assert answer.text == json.loads(answer_to("why"))["choices"][0]["message"]["content"]
        (headers,) = engine.headers
        assert headers["X-Metropolis-Program"] == "agent 3"
        assert (headers["X-Metropolis-Function"], headers["X-Metropolis-Step"]) == ("plan", "7")
        await backend.close()
        await engine.kill()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (
            "bad request",
            RefusedError,
            "answered plan of agent 3 at step 14 with HTTP 400: too long",
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
            await backend.close()

    asyncio.run(run())


def test_it_cannot_go_to_other_processes() -> None:
    with pytest.raises(MetropolisError, match="start `metropolis gateway`"):
        pickle.dumps(before("http://127.0.0.1:1"))


def test_a_world_runs_before_two_engines(tmp_path: Path) -> None:
    async def run() -> None:
        async with FaultyServer() as one, FaultyServer() as two:
            options = ["social", "--engine", one.url, "--engine", two.url, "--steps", "3"]
            options += ["--policy", "step+kairos", "--dispatcher", "round_robin", "--quiet"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MAIN, "run", *options, "--out", str(tmp_path / "run"),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            assert process.returncode == 0, output.decode()
            assert len(one.requests) > 3
            assert abs(len(one.requests) - len(two.requests)) <= 1

    asyncio.run(run())


def test_a_gateway_is_no_part_of_a_run_in_a_store() -> None:
    options = ["minimal", "--engine", "http://127.0.0.1:1", "--store", "embedded"]
    result = CliRunner().invoke(command, options, standalone_mode=False)
    assert isinstance(result.exception, MetropolisError)
    assert "leave out --llm and --store" in str(result.exception)
