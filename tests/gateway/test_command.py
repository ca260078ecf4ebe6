"""`metropolis gateway` as a process: its options and its shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import click
import pytest
from aiohttp import web
from click.testing import CliRunner

from metropolis.bench import METROPOLIS
from metropolis.cli.gateway import command
from metropolis.cli.gateway_front import Size, allow_connections
from metropolis.gateway.limits import Limits
from metropolis.types import MetropolisError
from tests.gateway.engines import StubEngine, answer_to, chat, until
from tests.gateway.test_server import post


@asynccontextmanager
async def running(
    *options: str, scheme: str = "http", lines: list[str] | None = None
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Yield the gateway's URL and its process; append its first line to `lines`."""
    process = await asyncio.create_subprocess_exec(
        *METROPOLIS, "gateway", "--port", "0", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        assert line.startswith(f"metropolis gateway at {scheme}://"), line
        if lines is not None:
            lines.append(line)
        yield line.split()[3].removesuffix(","), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_sigterm_lets_what_has_come_be_answered() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        options = ("--engine", await engine.start(), "--at-once", "1", "--policy", "step")
        async with running(*options) as (url, process):
            secret = {"Authorization": "Bearer sesame"}
            asked = [asyncio.create_task(post(url, chat(str(n)), headers=secret)) for n in (0, 1)]
            await until(lambda: engine.raw)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{url}/health") as health:
                    assert (await health.json())["waiting"] == 1
                process.send_signal(signal.SIGTERM)
                while True:  # on the open connection
                    try:
                        async with session.get(f"{url}/health") as health:
                            if (await health.json())["draining"]:
                                break
                    except aiohttp.ClientConnectionError:
                        break
            assert process.returncode is None
            with pytest.raises(aiohttp.ClientConnectionError):
                await post(url, chat("late"))
            engine.open.set()
            answers = await asyncio.gather(*asked)
            assert [answer for _, answer, _ in answers] == [answer_to("0"), answer_to("1")]
            output, errors = await process.communicate()
            assert process.returncode == 0
            assert b"sesame" not in output + errors
        await engine.kill()

    asyncio.run(ask())


def test_a_second_signal_waits_no_longer() -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with running("--engine", await engine.start()) as (url, process):
            asked = asyncio.create_task(post(url, chat("why")))
            await until(lambda: engine.raw)
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            while b"unanswered requests: 1;" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 130
            with pytest.raises(aiohttp.ClientConnectionError):
                await asked
        await engine.kill()

    asyncio.run(ask())


def test_it_starts_before_its_engines_and_tells_of_them() -> None:
    async def ask() -> None:
        engine = StubEngine()
        url = await engine.start()
        await engine.kill()
        async with running("--engine", url) as (gateway, process):
            async with aiohttp.ClientSession() as session, session.get(f"{gateway}/health") as read:
                assert read.status == 503
                assert (await read.json())["engines"] == {url: False}
            await engine.start()
            status, answer, _ = await post(gateway, chat("why"))
            assert (status, answer) == (200, answer_to("why"))
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
            refused, answers, *_ = errors.decode().splitlines()
            assert refused.startswith(f"the engine at {url} cannot be reached for the check")
            assert answers == f"the engine at {url} answers"
        await engine.kill()

    asyncio.run(ask())


def test_what_is_no_engine_is_told_of() -> None:
    async def ask() -> None:
        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<h1>Hello</h1>")

        app = web.Application()
        app.router.add_get("/page/v1/models", page)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with running("--engine", url, "--engine", f"{url}/page") as (gateway, process):
            async with aiohttp.ClientSession() as session, session.get(f"{gateway}/health") as read:
                assert (await read.json())["engines"] == {url: True, f"{url}/page": False}
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
        other, malformed = sorted(errors.decode().splitlines()[:2])
        assert other.startswith(f"the engine at {url} answered the check with HTTP 404")
        assert "its URL should be that of an OpenAI-compatible server; requests" in other
        assert other.endswith("requests are sent to it anyway")
        assert malformed.startswith(f"the engine at {url}/page gave a malformed answer")
        await runner.cleanup()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policy", "best"), "'best' is not among the policies: "),
        (("--dispatcher", "best"), "'best' is not among the dispatchers:"),
        (("--engine", "nowhere"), "'nowhere' is not the address of a server"),
        (("--engine", "http://a:b@host"), "leave out user and password"),
        (("--engine", "vllm:nowhere"), "'nowhere' is not the address of a server"),
        (("--engine", "sglang:http://127.0.0.1:1/v1"), "at http://127.0.0.1:1 is listed twice"),
        (("--host", "127.0.0.1.x"), "cannot listen at 127.0.0.1.x:8000: "),
        (("--host", "192.0.2.1"), "--host 192.0.2.1: other machines may reach the gateway"),
        (("--host", ""), "--host is empty; write an address, such as 127.0.0.1"),
        (("--bodies-limit", "1KiB"), "--bodies-limit is 1,024 bytes, less than one body may have"),
        (("--certificate-key", __file__), "--certificate-key needs a certificate"),
        (("--certificate", __file__), "test_command.py: no certificate with its key"),
        (("--certificate", "/proc/self/mem"), "/proc/self/mem: Input/output error; give a PEM"),
        (("--api-key-file", __file__), "test_command.py, line 1: "),
    ],
)
def test_wrong_options_are_told_in_a_sentence(options: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(command, ["--engine", "http://127.0.0.1:1", *options])
    assert isinstance(result.exception, MetropolisError)
    assert sentence in str(result.exception)
    assert "a:b" not in str(result.exception)


def test_an_address_in_use_is_told_in_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(
            command, ["--engine", "http://127.0.0.1:1", "--port", str(port)]
        )
    assert isinstance(result.exception, MetropolisError)
    assert "choose another --host or --port" in str(result.exception)


@pytest.mark.parametrize(
    ("written", "size"),
    [("1", 1), ("16MiB", 16 << 20), ("1 GiB", 1 << 30), ("4KiB", 4096),
     ("0", None), ("-1", None), ("1.5MiB", None), ("1MB", None), ("", None), ("1e9", None)],
)  # fmt: skip
def test_sizes_have_units(written: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(
            click.BadParameter, match="is not a size; write a number of bytes, or one like"
        ):
            Size().convert(written, None, None)
    else:
        assert Size().convert(written, None, None) == size


def test_too_few_open_files_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    allow_connections(Limits(connections=3000), 256)
    assert not capsys.readouterr().err
    allow_connections(Limits(connections=4000), 256)
    said = capsys.readouterr().err
    assert "this process may open 4096 files; 4000 client connections" in said
    assert "need 4320; raise `ulimit -n` or lower --connections-limit" in said
