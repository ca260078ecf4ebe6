"""Calls of live runs on simulated instances: requests that are too large."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metropolis import _core
from metropolis.llm.base import Completion, RefusedError
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
        assert str(found.value) == f"plan of agent 3 at step 14: {reason}"
