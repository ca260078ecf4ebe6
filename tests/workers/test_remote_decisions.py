"""Optimistic runs whose agents decide in other processes, over links that delay and break."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.folder.calls_file import calls_by_step
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.types import AgentError, MetropolisError
from metropolis.world.base import Agent
from metropolis.world.user_errors import explanation_of
from metropolis.world.view import View
from tests.runtime.walkers import Meadow, PlainWalker, Walker, author, choose
from tests.workers.breaking_links import WORKERS, Chaos


@dataclass
class Streams(Walker):
    """Reads the beginnings of streams, and makes calls at the same time."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        said = ""
        async for piece in llm.stream(f"{observation}", function="think", max_tokens=40):
            said += piece
            if len(said) > 3:
                break
        self.memory.append(said[:3])
        both = await asyncio.gather(llm.chat("one", max_tokens=5), llm.chat("two", max_tokens=5))
        self.memory.append(both[0].text + both[1].text)
        return choose(self, observation)


class Late(Scripted):
    """Answers in any order."""

    def __init__(self) -> None:
        super().__init__(author)
        self._draw = Random(7)
        self.answered: list[tuple[int, int, str]] = []

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.002 * self._draw.random())
        completion = await super().complete(request)
        self.answered.append((request.agent, request.step, request.digest))
        return completion


def run(
    kind: type[Agent],
    chaos: Chaos | None,
    steps: int = 12,
    *,
    world: Meadow | None = None,
    llm: Late | None = None,
    max_tokens: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> RunResult:
    world = world or Meadow(6, side=8, joint=1)
    agents = [kind(name) for name in world.names]  # type: ignore[call-arg]
    mode = "lockstep" if chaos is None else "optimistic"
    client = Client(llm or Late(), max_tokens=max_tokens)
    with pytest.MonkeyPatch.context() as patch:
        if chaos is not None:
            patch.setattr("metropolis.runtime.live.optimistic.make_decisions", chaos.decisions)
        how: dict[str, Any] = {"mode": mode, "waste_budget": 1.0, "seed": seed, "out": out}
        return Simulation(world, agents, client, **how).run(steps)


def sent(run: Path) -> list[tuple[int, int, str, tuple[tuple[int, int], ...]]]:
    """Step, agent, function and parents of each call of a run, answered or not."""
    steps = calls_by_step(run / "calls.jsonl")
    return [
        (step, agent, call.function, call.parents)
        for _, calls in steps
        for step, agent, call in calls
    ]


@pytest.mark.parametrize("kind", [Walker, PlainWalker, Streams])
@settings(max_examples=8)
@given(seed=st.integers(0, 1000), loss=st.sampled_from([0.0, 0.02]))
def test_the_history_is_lockstep_s(kind: type[Agent], seed: int, loss: float) -> None:
    chaos = Chaos(seed, loss)
    with TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        remote = run(kind, chaos, seed=seed, out=ours)
        known = run(kind, None, seed=seed, out=theirs)
        assert sent(ours) == sent(theirs)
    assert remote.history_sha256 == known.history_sha256
    assert loss or chaos.links == WORKERS
    if kind is Streams:
        return  # whether a stream ends before its reader leaves is a matter of time
    assert remote.calls == known.calls
    for column in ("step", "agent", "function", "prompt_tokens", "output_tokens", "parents"):
        ours, theirs = getattr(remote.trace.calls, column), getattr(known.trace.calls, column)
        assert (ours == theirs).all(), column


def test_known_answers_are_not_bought_again_when_workers_are_lost() -> None:
    known, lost = run(Walker, None, 20), 0
    for seed in range(4):
        chaos, llm = Chaos(seed, loss=0.05), Late()
        assert run(Walker, chaos, 20, llm=llm).history_sha256 == known.history_sha256
        # A request in flight that no execution needs is cancelled, and may be sent again.
        assert len(set(llm.answered)) == len(llm.answered)
        lost += chaos.links - WORKERS
    assert lost  # how many depends on how messages fall together: some 5 a run


def test_workers_that_are_always_lost_end_the_run() -> None:
    with pytest.raises(MetropolisError, match="ended 3 times without a decision in between: it"):
        run(Walker, Chaos(loss=1.0))


@dataclass
class Fails(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 4 and self.name == "w02":
            raise KeyError("apple")
        return await super().proceed(observation, llm)


class OddError(Exception):
    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, because {why}")


@dataclass
class FailsOddly(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 4 and self.name == "w02":
            raise OddError("it is over", "time is up")
        return await super().proceed(observation, llm)


@pytest.mark.parametrize("kind", [Fails, FailsOddly])
def test_errors_of_agents_are_those_of_a_run_in_one_process(kind: type[Agent]) -> None:
    sentences = []
    for chaos in (Chaos(), None):
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- of two kinds
            run(kind, chaos)
        sentences.append(explanation_of(caught.value) or str(caught.value))
    assert sentences[0] == sentences[1]
    assert "step 4, agent 'w02'" in sentences[0]


class Shows(Meadow):
    """Lets agents read the world themselves."""

    def observe(self, view: Any) -> Any:
        return view


def test_a_view_is_no_observation_for_another_process() -> None:
    with pytest.raises(MetropolisError, match=r"step 0, agent 'w00': what it observes cannot"):
        run(Walker, Chaos(), 3, world=Shows(2))


@dataclass
class Impatient(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        with suppress(TimeoutError):
            await asyncio.wait_for(llm.chat("never", max_tokens=9), 0.001)
        return choose(self, observation) | {"talk": False}


class Never(Late):
    def __init__(self) -> None:
        super().__init__()
        self.cancelled = 0

    async def complete(self, request: Request) -> Completion:
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled += 1
        return await super().complete(request)


def test_a_call_that_is_given_up_is_cancelled() -> None:
    llm = Never()
    run(Impatient, Chaos(), 3, llm=llm)
    assert llm.cancelled >= 6 * 3


@dataclass
class Leaves(Walker):
    """Does not wait for one of its calls."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        self._left = asyncio.create_task(llm.chat("left", max_tokens=9))
        await asyncio.sleep(0)
        return choose(self, observation)


def test_calls_that_are_left_do_not_remain() -> None:
    chaos = Chaos()
    assert run(Leaves, chaos).history_sha256 == run(Leaves, None).history_sha256
    assert not any(link.host.open_calls for link in chaos.made)


class Breaks(Late):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    async def complete(self, request: Request) -> Completion:
        if request.step == 2:
            raise self._error
        return await super().complete(request)


@pytest.mark.parametrize("error", [OddError("it broke", "it is old"), asyncio.CancelledError()])
def test_an_odd_error_of_a_call_ends_the_run(error: BaseException) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 -- of several kinds
        run(Walker, Chaos(), llm=Breaks(error))
    assert "agent 'w0" in (explanation_of(caught.value) or str(caught.value))


@dataclass
class Holds(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return Lock()


@dataclass
class Computes(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        return lambda: observation


def test_an_action_that_cannot_be_copied_names_its_agent() -> None:
    with pytest.raises(
        MetropolisError, match=r"step 0, agent 'w0\d': its action <.*cannot be copied"
    ):
        run(Holds, Chaos())


def test_an_action_that_cannot_be_sent_names_its_agent() -> None:
    with pytest.raises(AgentError, match=r"step 0, agent 'w0\d': its action <.*cannot be sent"):
        run(Computes, Chaos())


@dataclass
class Imports(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        raise ModuleNotFoundError("No module named 'late'")


def test_what_a_worker_cannot_import_is_named() -> None:
    with pytest.raises(MetropolisError, match=r"cannot import .* named 'late'\); install it"):
        run(Imports, Chaos())


class Sealed:
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("sealed",)


class Post(Meadow):
    def observe(self, view: View) -> Any:
        return Sealed()


def test_an_observation_that_cannot_be_received_names_its_agent() -> None:
    with pytest.raises(AgentError, match=r"step 0, agent 'w0\d': its worker cannot unpickle"):
        run(Walker, Chaos(), world=Post(3))


class KnownHereError(Exception):
    """Can be unpickled once, by the run itself, which has tried it before it sends it."""

    def __init__(self, failure: type[Exception]) -> None:
        super().__init__("no answer")
        self.failure = failure

    def __reduce__(self) -> Any:
        return load_once, (self.failure, id(self))


LOADED: set[int] = set()


def load_once(failure: type[Exception], key: int) -> KnownHereError:
    if key in LOADED:
        raise failure("No module named 'late'")
    LOADED.add(key)
    return KnownHereError(failure)


class AnswersWithError(Late):
    def __init__(self, failure: type[Exception]) -> None:
        super().__init__()
        self.failure = failure

    async def complete(self, request: Request) -> Completion:
        raise KnownHereError(self.failure)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (ModuleNotFoundError, r"cannot import .* named 'late'\); install it"),
        (TypeError, r"a worker cannot unpickle the error of a call \(TypeError: No module"),
    ],
)
def test_the_error_of_a_call_that_cannot_be_received_ends_the_run(
    failure: type[Exception], says: str
) -> None:
    LOADED.clear()
    with pytest.raises(MetropolisError, match=says):
        run(Walker, Chaos(), llm=AnswersWithError(failure))


@dataclass
class Interrupts(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_of_an_agent_names_it() -> None:
    with pytest.raises(AgentError, match=r"step 0, agent 'w0\d'.*KeyboardInterrupt"):
        run(Interrupts, Chaos())


def test_a_budget_ends_the_run() -> None:
    result = run(Walker, Chaos(), 50, world=Meadow(6, side=8), max_tokens=3000)
    assert result.stopped is not None
    assert result.steps < 50
