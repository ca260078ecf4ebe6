"""Hostile answers to the client's backends and to the gateway's engine clients.

Every call ends in time, in the answer that was meant or in one sentence. METROPOLIS_FUZZ_INPUTS
sets how many answers the campaign sends; a failure names the seed of its answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from metropolis.dispatch.base import Fleet
from metropolis.dispatch.fixed import RoundRobin
from metropolis.gateway.backend import LocalGateway
from metropolis.gateway.engine_client import EngineClient
from metropolis.llm import (
    Backend,
    Client,
    Completion,
    LLMError,
    Prices,
    Request,
    TimedOutError,
    UnreachableError,
)
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.connection import AnswerLimits
from metropolis.llm.backends.meter import HIDDEN_PROMPT_TOKENS, SPECIAL_TOKENS, TEXT_BYTES
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.sglang import SGLang
from metropolis.policy.agentix.policy import Plas
from metropolis.policy.base import Policy
from metropolis.policy.fixed import Fcfs
from tests.llm.fakes import request
from tests.llm.fuzz_answers import PAUSE_S, WRONG, Answer, draw_answer, draw_page
from tests.llm.raw_server import RawServer, Script, answer

LANES = 16
TIMEOUT_S = 0.3
"""The first time-out; it doubles when a sound answer comes too late, on a busy machine."""
PATIENT_S = 60.0
"""Maximum time-out."""
LIMITS = AnswerLimits(head_bytes=8192, body_bytes=200_000, event_bytes=30_000, time_s=PATIENT_S)
DEADLINE_S = 30.0
"""Maximum duration of a call, if twice its time-out is not longer."""
MEMORY_BYTES = 200 << 20
FEW, MANY = 100, int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "25000"))
MARKER = re.compile(r"\[m[0-9]+\]")
ROUTES = {"/generate": "generate", "/completions": "completions"}


def gateway(policy: type[Policy], kind: str, url: str) -> Backend:
    return LocalGateway([kind + url], policy(), RoundRobin(Fleet.uniform(1, 100_000, 30.0)))


TARGETS: dict[str, Callable[[str], Backend]] = {
    "sglang": lambda url: SGLang(url, limits=LIMITS),
    "compatible": lambda url: Compatible(url, "tiny", limits=LIMITS),
    "vllm": lambda url: Compatible(url, "tiny", vllm=True, limits=LIMITS),
    "openai": lambda url: OpenAIClient(url, "tiny", limits=LIMITS),
    "gateway": lambda url: gateway(Fcfs, "", url),
    "gateway that preempts": lambda url: gateway(Plas, "sglang:", url),
}


class Fuzz:
    """`count` answers to one kind of backend."""

    def __init__(self, target: str, seeds: Iterator[int]) -> None:
        self.target, self._seeds = target, seeds
        self._timeout_s = TIMEOUT_S
        self.drawn: dict[str, Answer] = {}
        self.outcomes: Counter[str] = Counter()
        self.server = RawServer(self._script)
        self.faults: list[object] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.faults.append(context))
        async with self.server:
            await asyncio.gather(*(self._lane() for _ in range(LANES)))
        assert not self.faults

    def _script(self, number: int) -> Script:
        head, _, body = self.server.posts[number].partition(b"\r\n\r\n")
        found = MARKER.search(body.decode())
        if found is None:  # an abort
            return [answer(b"{}")]
        path = head.split()[1].decode()
        route = next((route for end, route in ROUTES.items() if path.endswith(end)), "chat")
        is_chat = path.endswith("chat/completions")
        drawn = draw_answer(
            int(found[0][2:-1]),
            "chat" if is_chat else route,
            stream=b'"stream":true' in body,
            marker=found[0],
        )
        self.drawn[found[0]] = drawn
        return drawn.play()

    async def _lane(self) -> None:
        """Make the calls one after the other, so that connections are reused at once."""
        backend = TARGETS[self.target](self.server.url)
        for seed in self._seeds:
            marker = f"[m{seed}]"
            timeout_s = self._timeout_s
            while (outcome := await self._call(backend, marker, seed, timeout_s)) == "late":
                timeout_s *= 2
                assert timeout_s < PATIENT_S, self._shown(marker)
                self._timeout_s = max(self._timeout_s, timeout_s)
            self.outcomes[outcome] += 1
            drawn = self.drawn.pop(marker, None)
            if drawn is not None and "late" in drawn.kinds:
                await asyncio.sleep(3 * PAUSE_S)
        await backend.close()

    async def _call(self, backend: Backend, marker: str, seed: int, timeout_s: float) -> str:
        draw = Random(seed)
        words = f"call {marker}"
        is_chat = draw.random() < 0.5
        sent = (
            request(messages=({"role": "user", "content": words},))
            if is_chat
            else request(prompt=words)
        )
        client = Client(
            backend, retries=0, timeout_s=timeout_s, patience_s=0, max_tokens=10**9,
            max_cost=10.0, prices=Prices(1.0, 1.0),
        )  # fmt: skip
        got: Completion | None = None
        try:
            async with asyncio.timeout(max(DEADLINE_S, 2 * timeout_s)):
                if draw.random() < 0.5:
                    got = await client.call(sent)
                else:
                    items = [item async for item in client.stream(sent)]
                    got = items.pop()
                    assert "".join(items) == got.text, self._shown(marker)
        except LLMError as error:
            return self._failed(error, marker)
        finally:
            spent = client.gate.token_budget.spent
            assert isinstance(spent, int | float)
            assert 0 <= spent < 10**6, self._shown(marker)
            assert client.gate.in_flight == 0
        self._check(got, sent, marker)
        return "answered"

    def _failed(self, error: LLMError, marker: str) -> str:
        sentence = str(error)
        assert sentence.isprintable(), self._shown(marker)
        assert len(sentence) < 2000, self._shown(marker)
        drawn = self.drawn.get(marker)
        if drawn is None or drawn.exact:
            busy = TimedOutError, UnreachableError  # on a busy machine
            assert isinstance(error, busy), f"{error!r} {self._shown(marker)}"
            return "late"
        return type(error).__name__

    def _check(self, got: Completion, sent: Request, marker: str) -> None:
        drawn = self.drawn[marker]
        shown = self._shown(marker)
        assert isinstance(got.text, str), shown
        assert WRONG not in got.text, shown
        assert got.finish_reason in ("stop", "length"), shown
        size = len(got.text.encode(errors="replace"))
        assert size <= TEXT_BYTES + 256 * sent.max_tokens, shown
        assert 0 <= got.prompt_tokens <= len(sent.text) + 100 + HIDDEN_PROMPT_TOKENS, shown
        most = max(size + LIMITS.body_bytes, sent.max_tokens) + SPECIAL_TOKENS
        assert 0 <= got.output_tokens <= most, shown
        if drawn.exact:
            assert got.text == drawn.text, shown
        elif "bytes" not in drawn.kinds:
            assert set(MARKER.findall(got.text)) <= {marker}, shown

    def _shown(self, marker: str) -> str:
        drawn = self.drawn.get(marker)
        return f"seed {marker} before {self.target}: {drawn and drawn.kinds}"


def fuzz(target: str, first: int, count: int) -> Counter[str]:
    run = Fuzz(target, iter(range(first, first + count)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asyncio.run(run.run())
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < MEMORY_BYTES, f"{grown:,} bytes"
    assert run.outcomes["answered"] > count / 10
    return run.outcomes


CHECKS: dict[str, Callable[[str], Backend | EngineClient]] = {
    "sglang": SGLang,
    "compatible": lambda url: Compatible(url, "tiny"),
    "engine": EngineClient,
    "vllm engine": lambda url: EngineClient(f"vllm:{url}"),
}


async def check(target: str, seed: int) -> str:
    """One check of a server whose pages are all hostile."""
    pages: list[Answer] = []

    def page() -> Script:
        pages.append(draw_page(seed, server.gets[-1].split()[1].decode()))
        return pages[-1].play()

    server = RawServer(lambda n: [answer(b"{}")], page)
    async with server:
        looking = CHECKS[target](server.url)
        try:
            if isinstance(looking, EngineClient):
                is_up, sentence, _ = await looking.probe()
                await looking.preemptions()
                outcome = "up" if is_up else "down"
            else:
                await looking.check()
                outcome, sentence = "up", ""
        except LLMError as error:
            outcome, sentence = type(error).__name__, str(error)
        await looking.close()
    assert len(sentence) < 2000, f"seed {seed} before {target}"
    is_late = "did not answer within" in sentence and all(one.exact for one in pages)
    return "late" if is_late else outcome


async def check_many(target: str, seeds: Iterator[int]) -> Counter[str]:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def lane() -> list[str]:
        return [await check(target, seed) for seed in seeds]

    async with asyncio.timeout(600):
        outcomes = await asyncio.gather(*(lane() for _ in range(LANES)))
    assert not faults
    return Counter(one for some in outcomes for one in some)


def checked(target: str, seeds: range) -> Counter[str]:
    """The outcomes of checks; all are repeated if one is late."""
    timeout_s = TIMEOUT_S
    while True:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("metropolis.llm.backends.http.CHECK_S", timeout_s)
            outcomes = asyncio.run(check_many(target, iter(seeds)))
        if not outcomes["late"]:
            return outcomes
        timeout_s *= 2
        assert timeout_s < PATIENT_S


@pytest.mark.parametrize("target", CHECKS)
def test_every_page_of_a_check_is_parsed_or_refused_with_one_sentence(target: str) -> None:
    assert checked(target, range(FEW // 2))["up"] > FEW // 20


@pytest.mark.campaign
@pytest.mark.parametrize("target", CHECKS)
def test_hostile_pages_campaign(target: str) -> None:
    seeds = range(1_000_000, 1_000_000 + MANY // 4 // len(CHECKS))
    print(f"pages, {target}: {dict(checked(target, seeds))}")  # noqa: T201


@pytest.mark.parametrize("target", TARGETS)
def test_every_answer_is_parsed_or_refused_with_one_sentence(target: str) -> None:
    fuzz(target, 0, FEW)


@pytest.mark.campaign
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_answers_campaign(target: str) -> None:
    outcomes = fuzz(target, 1_000_000, MANY // len(TARGETS))
    print(f"{target}: {dict(outcomes)}")  # noqa: T201
