"""Random schedules of fleets that change."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.fleet_schedule import FleetPhase, FleetSchedule

GPUS = 4
FLEET = SimulatedFleet.parse(
    [
        *("a=llama-3-8b/a100:3", "a=vicuna-13b/a100-80g-tp2"),
        *("b=llama-3-8b/l4:2", "b=mistral-7b/a100-80g-tp2"),
    ]
)
SIZES = [each.tensor_parallel for each in FLEET.instances]


def random_schedule(seed: int, steps: int, load_s_max: float = 3.0) -> FleetSchedule:
    """Phases with at least one instance of `a` and of `b` each, on four GPUs."""
    draw = Random(seed)
    begins = sorted({0, *(draw.randrange(1, steps + 1) for _ in range(draw.randint(0, 4)))})
    phases = []
    for step in begins:
        free, gpus = draw.sample(range(GPUS), GPUS), {}
        first = [draw.randrange(4), draw.randrange(4, 7)]
        for instance in [*first, *draw.sample(range(7), 3)]:
            if instance not in gpus and len(free) >= SIZES[instance]:
                gpus[instance] = tuple(free.pop() for _ in range(SIZES[instance]))
        phases.append(FleetPhase(step, gpus))
    load_s = tuple(draw.choice([0.0, draw.uniform(0, load_s_max)]) for _ in SIZES)
    return FleetSchedule(FLEET, load_s, tuple(phases))


def schedules(steps: int) -> st.SearchStrategy[FleetSchedule]:
    """Random schedules for a trace of that many steps."""
    return st.builds(random_schedule, st.integers(0, 1 << 30), st.just(steps))
