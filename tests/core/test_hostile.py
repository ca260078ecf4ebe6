"""Hostile arguments get a sentence: nothing in `metropolis._core` crashes, hangs or aborts.

A finding names its case; `python -m tests.core.child EXTENSION CASE 1 FILE plain` runs it alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from metropolis import _core
from tests.core.cases import public_names
from tests.core.fuzz import fuzz
from tests.core.speculation_cases import PROCEED, RESOLVE

EXTENSION = Path(_core.__file__)
CAMPAIGN_CASES = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "30000"))


def test_hostile_arguments_get_a_sentence() -> None:
    """Every public name is called, at least once successfully: a new one needs a case."""
    fuzzed = fuzz(EXTENSION, 0, 1700)
    assert not fuzzed.findings
    assert not fuzzed.missing


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(4))
def test_campaign(part: int) -> None:
    each = -(-CAMPAIGN_CASES // 4)
    assert not fuzz(EXTENSION, 1_000_000 * (part + 1), each).findings


def test_new_names_of_a_module_are_found() -> None:
    class Core:
        """A module with a name that no case uses."""

        novelty = staticmethod(lambda: None)

    assert public_names(Core) == ["novelty"]


def replay(**changes: object) -> _core.Replay:
    """One agent, two steps, a call in each."""
    columns = {
        "positions": np.zeros((2, 1, 2), np.float32),
        "call_offsets": np.array([0, 1, 2]),
        "call_step": np.array([0, 1], np.int32),
        "call_agent": np.array([0, 0], np.int32),
        "parent_offsets": np.array([0, 0, 0]),
        "parents": np.array([], np.int64),
        "prompt_tokens": np.array([5, 5], np.int32),
        "output_tokens": np.array([2, 2], np.int32),
        "prefix_id": np.array([-1, -1]),
        "prefix_tokens": np.array([0, 0], np.int32),
        "value_offsets": np.array([0, 0, 0]),
        "value_writers": np.array([], np.int32),
        "value_ago": np.array([], np.int32),
        "controller": _core.make_controller(
            4, 5, _core.plane_metric("chebyshev"), 1, np.zeros((1, 2)), 2
        ),
        "instances": _core.InstancePool(_core.Profile(w_ms=1.0, kv_capacity_tokens=64)),
        "step_priority": True,
        "max_outstanding": 0,
    }
    return _core.Replay(**(columns | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"call_offsets": np.array([0, 9, 2])}, "call_offsets must ascend from 0 to 2"),
        ({"call_agent": np.array([0, 7], np.int32)}, "call 1 is of step 1 and agent 7"),
        ({"prompt_tokens": np.array([5], np.int32)}, "call_offsets must ascend|must have"),
        (
            {"parent_offsets": np.array([0, 1, 1]), "parents": np.array([0])},
            "the parents of calls form a cycle",
        ),
        ({"prompt_tokens": np.array([5, 2**32 + 5])}, "prompt_tokens has values from 5 to"),
        ({"max_outstanding": -1}, "max_outstanding is -1"),
        ({"value_offsets": np.array([0, 1])}, "value_offsets has 2 values, but must have 3"),
        (
            {
                "value_offsets": np.array([0, 0, 1]),
                "value_writers": np.array([1], np.int32),
                "value_ago": np.array([1], np.int32),
            },
            "dependency 0 is on agent 1 1 steps ago; the agent must be below 1",
        ),
        (
            {"controller": _core.make_graph_controller(3, 1, [0, 0, 0, 0], [])},
            "the controller runs 3 agents to step 1, the trace has 1 agents and 2 steps",
        ),
    ],
)
def test_columns_of_a_replay(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replay(**changes)


def test_a_sound_replay_runs() -> None:
    """A replay does not read again a column that the caller changes."""
    offsets = np.array([0, 1, 2])
    running = replay(call_offsets=offsets)
    offsets[1] = 2**40
    assert running.run(100)


def test_a_replay_keeps_what_a_read_only_view_shows() -> None:
    offsets = np.array([0, 1, 2])
    view = offsets.view()
    view.flags.writeable = False
    running = replay(call_offsets=view)
    offsets[1] = 2**40
    assert running.run(100)


@pytest.mark.parametrize("name", ["Profile", "InstancePool", "Metric"])
def test_objects_are_not_made_without_their_part_in_cpp(name: str) -> None:
    """`__new__` of a class of the core and of its base classes refuses to make such an object."""
    made = getattr(_core, name)
    for maker in made.__mro__:
        with pytest.raises(TypeError):
            maker.__new__(made)


def test_parents_that_change_during_a_simulation() -> None:
    parent, is_over = np.full(200_000, -1), Event()

    def change() -> None:
        while not is_over.is_set():
            parent[-1000:] = 2**40
            parent[-1000:] = -1

    changing = Thread(target=change)
    changing.start()
    ones = np.ones(len(parent), np.int32)
    profile = _core.Profile(w_ms=1.0, kv_capacity_tokens=64)
    try:
        for _ in range(20):
            with suppress(ValueError):  # it has seen a change
                _core.simulate(profile, 0.0 * ones, ones, ones, parent=parent, until_sim_s=0.0)
    finally:
        is_over.set()
        changing.join()


class Meddler:
    """A number that leaves places when it is looked at; as a key, it equals nothing."""

    def __init__(self, places: _core.LeftPlaces, number: int) -> None:
        self._places, self._number = places, number

    def _meddle(self) -> None:
        for entity in range(1000):
            self._places.leave(entity, (0, 0), 9, [(entity, 9)])

    def __index__(self) -> int:
        self._meddle()
        return self._number

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other: object) -> bool:
        self._meddle()
        return False


@pytest.mark.parametrize("is_key", [False, True])
def test_places_that_are_left_during_a_search(is_key: bool) -> None:
    places = _core.LeftPlaces(_core.plane_metric("chebyshev"), 1)
    for entity in range(4):
        places.leave(entity, (0, 0), entity, [(entity, entity)])
    meddler = Meddler(places, 3)
    known: Any = {meddler: 0} if is_key else {3: meddler}
    with pytest.raises(ValueError, match="a place is left during a search"):
        places.unknown_to(9, known, (0, 0), 1, None)
    places.leave(0, (0, 0), 4, [(0, 4)])
    assert len(places.unknown_to(9, {}, (0, 0), 1, None)) == 4


@pytest.mark.parametrize(("first", "then"), [(5, 3), (0, -1)])
def test_places_are_left_in_the_order_of_steps(first: int, then: int) -> None:
    places = _core.LeftPlaces(_core.plane_metric("chebyshev"), 1)
    places.leave(0, (0, 0), first, [(0, first)])
    with pytest.raises(ValueError, match=f"in step {then} after one in step {first}; steps are"):
        places.leave(1, (0, 0), then, [(1, then)])


def test_steps_that_another_commits_with_a_speculation_s_controller_are_reported() -> None:
    """Agents 1 and 2 run ahead of agent 0; then another commits all steps."""
    metric = _core.plane_metric("chebyshev")
    places = [(0.0, 0.0), (5.0, 0.0), (10.0, 0.0)]
    controller = _core.make_controller(1, 50, metric, 1, np.array(places), 20)
    speculation = _core.Speculation(
        controller=controller, metric=metric, perception_radius=4.0, cluster_radius=1.0,
        target_step=20, bodies=[0, 1, 2], minds=[0] * 3,
        entities=[(agent, *place, 0) for agent, place in enumerate(places)],
    )  # fmt: skip

    def end(command: Any, digest: int, reads: Any = ()) -> list[Any]:
        kind, id, _, agents, *_ = command
        if kind == PROCEED:
            speculation.observed(id, reads)
            speculation.proceeded(id)
        else:
            [agent] = agents
            written = [(agent, (*places[agent], digest))]
            speculation.resolved(id, [], written, [], [(agent, digest)], [])
        return [one for one in speculation.settle() if one[0] == RESOLVE]

    def ahead(agent: int, digest: int, reads: Any = ()) -> None:
        [command] = speculation.speculate([agent])
        [command] = end(command, 0, reads)
        end(command, digest)

    for command in speculation.start():
        if command[3] != (0,):
            [command] = end(command, 0)
            end(command, 1)
    ahead(1, 2)
    ahead(1, 3, [(0, 2, 0.0, 0.0, 0.0, [(2, 10.0, 0.0, 1)])])
    ahead(1, 4)
    ahead(2, 2)  # so that agent 1 has read what is wrong
    [command] = speculation.speculate([1])
    [repeated] = end(command, 0)
    for _ in range(6):
        for agent in range(3):
            with suppress(ValueError):
                controller.commit([agent], [places[agent]])
    speculation.settle()
    with pytest.raises(ValueError, match="has written is collected; has its controller been used"):
        end(repeated, 5)


def test_requests_of_another_caller_are_reported() -> None:
    pool = _core.InstancePool(_core.Profile(w_ms=1.0, kv_capacity_tokens=64))
    running = replay(instances=pool)
    pool.submit(99, _core.Request(1, 1), 0.0)
    with pytest.raises(ValueError, match="request 99 was not submitted by this replay"):
        running.run(100)
    with pytest.raises(ValueError, match="the replay has already failed"):
        running.run(100)


@pytest.mark.parametrize("place", [(float("nan"), 0), (8, 0), (-1, 0), (0, 1), (1e300, 0)])
def test_places_outside_a_graph(place: tuple[float, float]) -> None:
    metric = _core.hops_metric([0, 1, 2], [1, 0])
    with pytest.raises(ValueError, match="no agent can stand at"):
        metric.within((0, 0), place, 1, 0)


def test_a_controller_starts_once() -> None:
    controller = _core.make_graph_controller(2, 1, [0, 0, 0], [])
    controller.start()
    with pytest.raises(ValueError, match="has been started before"):
        controller.start()
