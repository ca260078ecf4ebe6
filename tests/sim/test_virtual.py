"""Calls of live runs on simulated instances: requests that are too large, ends of programs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metropolis import _core
from metropolis.llm.base import Completion, RefusedError
from metropolis.policy.base import QueuedRequest, ServedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.sim import virtual
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from tests.llm.fakes import Fake, request


@pytest.mark.parametrize(
    ("prompt", "output"), [(30_000, 2), (1, 1), (0, 0), (1 << 24, 1), (40_000, 1), (1, 40_000)]
)
def test_a_call_is_refused_if_an_idle_instance_refuses_it(
    monkeypatch: pytest.MonkeyPatch, prompt: int, output: int
) -> None:
    fleet = SimulatedFleet.parse(["llama-3-8b/a100", "llama-3-8b/l4"])
    fake = Fake(lambda _: Completion("", prompt, output, "stop"), lambda _: 0.0)
    llm = VirtualInstances(fake, fleet)
    try:
        for profile in fleet.profiles:
            tokens = _core.Request(max(1, prompt), max(1, output))
            _core.InstancePool(profile).submit(0, tokens, 0.0)
        reason = None
    except ValueError as error:
        reason = str(error).replace("request 0", "the request")

    # A pool for each call would be slow.
    pool = SimpleNamespace(check_fits=_core.InstancePool.check_fits)
    core = SimpleNamespace(InstancePool=pool, Request=_core.Request)
    monkeypatch.setattr(virtual, "_core", core)

    async def call() -> None:
        completing = asyncio.ensure_future(llm.complete(request()))
        await asyncio.sleep(0.01)
        completing.cancel()
        await completing

    if reason is None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(call())
    else:
        with pytest.raises(RefusedError) as found:
            asyncio.run(call())
        assert str(found.value) == f"plan of 'agent 3' at step 14: {reason}"


class Ends(Fcfs):
    """Records the ends of requests and of programs."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def completed(self, served: ServedRequest) -> None:
        self.seen.append(f"completed {served.request.program}")

    def cancelled(self, request: QueuedRequest) -> None:
        self.seen.append(f"cancelled {request.program}")

    def program_ended(self, program: str) -> None:
        self.seen.append(f"ended {program}")


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_program_ends_after_its_last_open_call(is_cancelled: bool) -> None:
    """Optimistic runs have calls of several steps of an agent open at a time."""
    fake = Fake(lambda asked: Completion("", 10, 9 - 4 * asked.step, "stop"), lambda _: 0.0)
    policy = Ends()
    llm = VirtualInstances(fake, SimulatedFleet.uniform("llama-3-8b/l4", 1), policy=policy)

    async def calls() -> None:
        first, *others = (asyncio.ensure_future(llm.complete(request(step=s))) for s in (0, 1, 2))
        await asyncio.sleep(0.01)
        if is_cancelled:
            llm.leap()
            first.cancel()
        while not all(other.done() for other in (first, *others)):
            await asyncio.sleep(0)
            llm.leap()
            await asyncio.sleep(0)

    asyncio.run(calls())
    latest, second = "completed 3 at 2", ["completed 3 at 1", "ended 3 at 1"]
    if is_cancelled:
        assert policy.seen == [latest, "cancelled 3 at 0", "ended 3 at 0", *second]
    else:
        assert policy.seen == [latest, *second, "completed 3 at 0", "ended 3 at 0"]
