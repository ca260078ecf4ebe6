"""Random applications, small enough to simulate many of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import LoadingTime, Machine
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import columns_of, drawn

MODELS = ("vicuna-13b", "chatglm3-6b", "mpt-7b", "mistral-7b")
FAST_LOADS = LoadingTime(base_s=0.0, s_per_gb=0.05, least_s=0.0, copy_s=0.1, parallel_s=0.2)
LENGTHS = {model: LengthDistribution.of(range(1, 120, 7)) for model in MODELS}


@st.composite
def applications(draw: st.DrawFn, nodes_max: int = 3) -> Application:
    """Some nodes; later ones may need earlier ones."""
    nodes, sources = [], {}
    for index in range(draw(st.integers(1, nodes_max))):
        is_chain = draw(st.booleans())
        parts = draw(st.integers(1, 4)) if is_chain else 1
        if index and draw(st.booleans()):
            name = f"n{draw(st.integers(0, index - 1))}"
        else:
            name = f"s{index}"
            tokens = draw(st.lists(st.integers(1, 300), min_size=1, max_size=12))
            sources[name] = tuple(
                Item(f"{key}", (each,) * parts) for key, each in enumerate(tokens)
            )
        model = draw(st.sampled_from(MODELS))
        times = draw(st.integers(1, 2))
        nodes.append(Node(f"n{index}", model, (name,), chain=is_chain, times=times, max_tokens=100))
    return Application("random", sources, tuple(nodes))


@st.composite
def timelines(draw: st.DrawFn, nodes_max: int = 3) -> Timeline:
    """A timeline of such an application on 1 to 4 GPUs."""
    machine = Machine(
        gpus=draw(st.integers(1, 4)), loading=draw(st.sampled_from([FAST_LOADS, LoadingTime()]))
    )
    application = draw(applications(nodes_max))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return Timeline(machine, drawn(columns_of(application), LENGTHS, machine.shapes, random))


def fresh(timeline: Timeline) -> Timeline:
    """The same timeline without what it has simulated."""
    return Timeline(timeline.machine, timeline.workload, timeline.slowness)
