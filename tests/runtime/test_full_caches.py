"""A run on instances whose prefix caches are full takes exactly as long as its replay."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.configuration import LiveMode
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.replay import Setting, cache_choice, plug_ins, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.profiles import load_entry
from metropolis.sim.virtual import VirtualInstances
from tests.runtime.talkers import Square, Talker, author

MODES: tuple[tuple[LiveMode, str], ...] = (("lockstep", "lockstep"), ("out_of_order", "versioned"))
"""Modes, live and in replays."""


@dataclass
class Reader(Talker):
    """Reads several of a few long texts in each step, the one after the other."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        draw = Random(f"{self.seed} {self.name} {self.step}")
        for _ in range(draw.randrange(4)):
            text = f"chapter {draw.randrange(8)} " * draw.choice([20, 40, 60])
            await llm.chat(f"{text}, read by {self.name}", max_tokens=60)
        return draw.choice((-1, 0, 1)), draw.choice((-1, 0, 1))


def fleet_with(kv_tokens: int, instances: int) -> SimulatedFleet:
    entry = load_entry("llama-3-8b/l4")
    small = copy(entry.profile)
    small.kv_capacity_tokens = kv_tokens
    return SimulatedFleet((replace(entry, profile=small),) * instances)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.sampled_from([480, 800, 1600]),
    st.integers(1, 2),
    st.sampled_from(MODES),
    st.sampled_from(("step", "plas", "kairos")),
    st.sampled_from((None, "agentix", "kairos")),
)
@settings(max_examples=40, deadline=None)
def test_a_run_takes_as_long_as_its_replay(
    seed: int,
    agents: int,
    kv_tokens: int,
    instances: int,
    mode: tuple[LiveMode, str],
    policy: str,
    dispatcher: str | None,
) -> None:
    fleet = fleet_with(kv_tokens, instances)
    world = Square(agents, 5, seed)
    choice = cache_choice(Setting(world.metric, 2, 1, fleet, reuse="prefix"))
    assert choice is not None
    order, placement = plug_ins(policy, dispatcher, fleet.dispatcher_view())
    virtual = VirtualInstances(
        Scripted(author), choice.fleet, policy=order, dispatcher=placement, choice=choice
    )
    readers = [Reader(name, seed) for name in world.names]
    ran = Simulation(world, readers, Client(virtual), mode=mode[0], keep_text=True).run(6)
    setting = replace(
        Setting.of(ran.trace.meta, fleet), policy=policy, dispatcher=dispatcher, reuse="prefix"
    )
    assert replay(ran.trace, mode[1], setting).makespan_sim_s == ran.makespan_s
