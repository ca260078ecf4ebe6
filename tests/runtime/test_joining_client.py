"""Orphaned requests of optimistic runs: no execution waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from metropolis.llm.agent import LLM
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.base import Request
from metropolis.llm.client import Client
from metropolis.llm.journal import key_of
from metropolis.llm.model_choice import ModelChoice
from metropolis.workers.optimistic.joining_client import JoiningClient
from metropolis.workers.optimistic.kept_answers import KeptAnswers


class Answering:
    """What a JoiningClient needs of a client, apart from `answer`."""

    journal = None
    backend = SimpleNamespace(name="m")
    models = ModelChoice()


class Open:
    """A gate that admits every call."""

    async def enter(self, key: Any) -> bool:
        return False

    def promote(self, agent: int, step: int) -> None:
        pass


def test_a_cancelled_request_is_not_joined() -> None:
    """A backend may take a while to notice that a request is cancelled."""
    answers = []

    class Slow(Answering):
        async def answer(self, request: Request) -> str:
            answers.append(request)
            try:
                await asyncio.sleep(0.01 if len(answers) == 2 else 60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.02)
                raise
            return "yes"

    async def ask_twice() -> Any:
        gate: Any = SimpleNamespace()
        client = JoiningClient(Slow(), KeptAnswers(None, {}), gate, time.monotonic)  # type: ignore[arg-type]
        request = LLM(client, agent=0, step=0, seed=0)._request("chat", None, "and?", {})
        first = asyncio.create_task(client.call(request))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        client.cancel_orphans(lambda agent, step: False)
        await asyncio.sleep(0.001)
        return await client.call(request)

    assert asyncio.run(ask_twice()) == "yes"
    assert len(answers) == 2


def test_the_end_waits_for_no_task_that_an_agent_has_left_behind() -> None:
    class Silent(Answering):
        async def answer(self, request: Request) -> str:
            await asyncio.sleep(60)
            return "late"

    async def end() -> bool:
        gate: Any = SimpleNamespace()
        client = JoiningClient(Silent(), KeptAnswers(None, {}), gate, time.monotonic)  # type: ignore[arg-type]
        request = LLM(client, agent=0, step=0, seed=0)._request("chat", None, "and?", {})
        left = asyncio.create_task(client.call(request))
        await asyncio.sleep(0)
        await asyncio.wait_for(client.end(), 10)
        await asyncio.wait([left])
        return left.cancelled()

    assert asyncio.run(end())


def test_a_needed_execution_that_gives_up_a_speculative_request_sends_it_anew() -> None:
    sent: list[tuple[str, bool]] = []

    class Slow(Answering):
        async def answer(self, request: Request) -> str:
            sent.append((request.text, request.speculative))
            await asyncio.sleep(60 if request.speculative else 0.001)
            return "yes"

    async def ask() -> Any:
        client = JoiningClient(Slow(), KeptAnswers(None, {}), Open(), time.monotonic)  # type: ignore[arg-type]

        def asking(text: str, *, speculative: bool) -> asyncio.Task[Any]:
            llm = LLM(client, agent=0, step=0, seed=0, speculative=speculative)
            return asyncio.create_task(client.call(llm._request("chat", None, text, {})))

        ahead = [asking(text, speculative=True) for text in ("one", "two")]
        await asyncio.sleep(0)
        for task in ahead:
            task.cancel()
        await asyncio.wait(ahead)
        assert not client.has_given_up(0, 0)  # a speculative execution did
        needed = asking("one", speculative=False)
        await asyncio.sleep(0)
        needed.cancel()
        await asyncio.wait([needed])
        assert client.has_given_up(0, 0)
        assert not client.has_given_up(0, 1)
        client.resend(0, 0)
        assert not client.has_given_up(0, 0)
        answer = await asking("one", speculative=False)
        client.cancel_orphans(lambda *_: False)
        await client.end()
        return answer

    assert asyncio.run(ask()) == "yes"
    assert sent == [("one", True), ("two", True), ("one", False)]


@pytest.mark.parametrize("iterations", range(8))
def test_an_answer_to_a_cancelled_request_is_kept_or_refused(iterations: int) -> None:
    """It arrives some iterations of the event loop after the request was orphaned."""
    completion = {
        "model": "m",
        "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
    body = json.dumps(completion)
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    async def answer_late(listening: socket.socket) -> tuple[bool, bool]:
        """Whether the answer is kept, and whether the connection is closed."""
        loop, kept = asyncio.get_running_loop(), KeptAnswers(None, {})
        client = Client(Compatible(f"http://127.0.0.1:{listening.getsockname()[1]}", model="m"))
        joining = JoiningClient(client, kept, Open(), time.monotonic)  # type: ignore[arg-type]
        request = LLM(joining, agent=0, step=0, seed=0)._request("chat", None, "and?", {})
        asking = asyncio.create_task(joining.call(request))
        server, _ = await loop.sock_accept(listening)
        server.setblocking(False)
        await loop.sock_recv(server, 65536)
        asking.cancel()
        await asyncio.sleep(0)
        joining.cancel_orphans(lambda agent, step: False)
        for _ in range(iterations):
            await asyncio.sleep(0)
        with suppress(ConnectionError):
            server.send(answer)
        await asyncio.sleep(0.01)
        try:
            is_closed = server.recv(1) == b""
        except BlockingIOError:
            is_closed = False
        except ConnectionError:
            is_closed = True
        server.close()
        await client.close()
        return kept.get(key_of(request)) is not None, is_closed

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        is_kept, is_closed = asyncio.run(answer_late(listening))
    assert is_kept != is_closed
    assert is_kept == (iterations == 0)
