"""Fleets that change: never more GPUs than there are, and each phase comes about."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.fleet_changes import Down, FleetChanges, InstanceState, Off, Up
from metropolis.sim.fleet_schedule import FleetPhase, FleetSchedule
from metropolis.types import MetropolisError
from tests.sim.fleet_schedules import FLEET, GPUS, SIZES, random_schedule

STEPS = 12


def validate(changes: FleetChanges) -> None:
    """Instances hold the GPUs that they need, and no GPU twice."""
    held = [gpu for gpus in changes.gpus.values() for gpu in gpus]
    assert len(held) == len(set(held)) <= GPUS
    for instance, state in enumerate(changes.states):
        size = len(changes.gpus.get(instance, ()))
        assert size == (0 if state is InstanceState.OFF else SIZES[instance])


@given(st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_every_phase_comes_about_and_no_gpu_is_used_twice(seed: int) -> None:
    draw, schedule = Random(seed), random_schedule(seed, STEPS)
    changes = FleetChanges(schedule)
    now_s, floor, in_flight, up = 0.0, 0, [0] * 7, set(schedule.phases[0].gpus)
    off_s: dict[int, float] = {}
    for _ in range(200):
        for index in range(7):
            if in_flight[index]:
                in_flight[index] = draw.randint(0, in_flight[index])
            elif index in up:
                in_flight[index] = draw.randint(0, 2)
        while found := changes.update(floor, in_flight, now_s):
            validate(changes)
            for change in found:
                index = change.instance
                if isinstance(change, Up):
                    loaded_s = off_s.pop(index, -1e9) + schedule.load_s[index]
                    assert index not in up
                    assert now_s >= loaded_s - 1e-9
                    up.add(index)
                elif isinstance(change, Down):
                    up.remove(index)
                else:
                    assert isinstance(change, Off)
                    assert not in_flight[index]
                    off_s[index] = now_s
        validate(changes)
        now_s = min(now_s + 1.0, changes.due_s)
        if draw.random() < 0.3:
            floor = min(floor + 1, STEPS)
    assert up == set(changes.gpus) == set(schedule.phases[-1].gpus)
    assert all(changes.gpus[index] == schedule.phases[-1].gpus[index] for index in up)


def test_a_model_loads_when_all_its_gpus_are_free() -> None:
    phases = FleetPhase(0, {0: (0,), 4: (1,)}), FleetPhase(3, {3: (0, 1)})
    changes = FleetChanges(FleetSchedule(FLEET, (5.0,) * 7, phases))
    busy, idle = [1] * 7, [0] * 7
    assert changes.update(2, busy, 1.0) == []
    assert changes.update(3, busy, 2.0) == [Down(0), Down(4)]
    assert changes.update(3, busy, 3.0) == []
    assert changes.update(3, [0, *busy[1:]], 4.0) == [Off(0)]
    assert changes.due_s == float("inf")
    assert changes.update(3, idle, 6.0) == [Off(4)]
    assert changes.due_s == 11.0
    assert changes.update(3, idle, 11.0) == [Up(3)]


def test_a_draining_instance_that_is_needed_again_serves_at_once() -> None:
    phases = (FleetPhase(0, {0: (0,)}), FleetPhase(1, {4: (0,)}), FleetPhase(2, {0: (0,)}))
    changes = FleetChanges(FleetSchedule(FLEET, (5.0,) * 7, phases))
    busy = [1] * 7
    assert changes.update(1, busy, 1.0) == [Down(0)]
    assert changes.update(2, busy, 2.0) == [Up(0)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"phases": ()}, "begin at the steps"),
        ({"phases": (FleetPhase(1, {0: (0,)}),)}, "begin at the steps"),
        ({"phases": (FleetPhase(0, {0: (0,), 1: (0,)}),)}, "GPUs of its own"),
        ({"phases": (FleetPhase(0, {0: (0, 1)}),)}, "GPUs of its own"),
        ({"phases": (FleetPhase(0, {9: (0,)}),)}, "that the fleet lacks"),
        ({"load_s": (1.0,)}, "a loading time of each instance"),
    ],
)
def test_what_is_no_schedule_is_refused(changed: dict[str, object], message: str) -> None:
    fleet = SimulatedFleet.parse(["a=llama-3-8b/l4:2"])
    valid = FleetSchedule(fleet, (1.0, 1.0), (FleetPhase(0, {0: (0,)}),))
    with pytest.raises(MetropolisError, match=message):
        replace(valid, **changed)
