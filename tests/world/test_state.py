"""State against a model that keeps every version of everything for ever."""

from collections import defaultdict
from math import inf, nextafter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.rules.metrics import CHEBYSHEV, Metric
from metropolis.types import MetropolisError, Position, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.state import EMPTY_CELLS_MAX, State
from tests.world.geometries import METRIC_NAMES, random_metric

NAMES = ["a", "b", "c", "d", "e"]


class Model:
    """All versions, none ever dropped; every question answered by looking through them all."""

    def __init__(self, metric: Metric, entities: list[Entity]) -> None:
        self.metric = metric
        self.versions: dict[str, list[tuple[Step, Entity | None]]] = defaultdict(list)
        self.events: list[Event] = []
        for entity in entities:
            self.versions[entity.name].append((0, entity))

    def version(self, name: str, step: Step) -> tuple[Step, Entity | None] | None:
        return max(
            (v for v in self.versions[name] if v[0] <= step), key=lambda v: v[0], default=None
        )

    def near(self, position: Position, radius: float, step: Step) -> dict[str, tuple]:
        return {
            name: version
            for name in self.versions
            if (version := self.version(name, step)) and version[1]
            if self.metric.perceives(position, version[1].position, radius)
        }


@pytest.mark.parametrize("name", METRIC_NAMES)
@given(seed=st.integers(0, 2**32))
def test_every_step_sees_what_it_should(name: str, seed: int) -> None:
    random = Random(seed)
    metric, places = random_metric(random, name)
    begun = [Entity(n, random.choice(places), "thing", {"n": 0}) for n in NAMES[:3]]
    radius = random.choice([0, 1, 2.5, 4, inf])
    state, model = State(metric, random.choice([1, radius]), begun), Model(metric, begun)
    floor, written = 0, dict.fromkeys(NAMES, -1)
    for number in range(40):
        free = [n for n in NAMES if written[n] < floor + 4]
        for entity in random.sample(free, min(len(free), random.randint(0, 2))):
            step = random.randint(max(floor, written[entity] + 1), floor + 4)
            gone = random.random() < 0.2
            value = None if gone else Entity(entity, random.choice(places), state={"n": number})
            said = [
                Event(step, entity, random.choice(places), "said", {"n": number, "part": part})
                for part in range(random.randint(0, 2))
            ]
            state.commit(step, {entity: value}, said)
            model.versions[entity].append((step + 1, value))
            model.events += said
            written[entity] = step
        floor += random.choice([0, 0, 1, 2])
        state.collect(floor)
        check(random, state, model, places, radius, floor + random.randint(0, 5))


def check(
    random: Random, state: State, model: Model, places: list[Position], radius: float, step: Step
) -> None:
    for name in NAMES:
        expected = model.version(name, step)
        assert state.entity(name, step) == (expected and expected[1])
        if expected and expected[1]:
            assert state.version(name, step) == expected
    place = random.choice(places)
    found = state.near(place, radius, step)
    assert found == model.near(place, radius, step)
    perceived = [
        event
        for event in model.events
        if event.step + 1 == step and model.metric.perceives(place, event.position, radius)
    ]
    assert state.events(place, radius, step) == sorted(perceived, key=lambda event: event.source)
    entities, events = state.at(step)
    everything = [model.version(name, step) for name in NAMES]
    assert entities == [version[1] for version in everything if version and version[1]]
    happened = [event for event in model.events if event.step + 1 == step]
    assert events == sorted(happened, key=lambda event: event.source)


def sizes(state: State) -> tuple[int, ...]:
    """What is kept: names, versions, events."""
    return (
        len(state._versions),
        sum(map(len, state._versions.values())),
        sum(len(cell) for step in state._events.values() for cell in step.values()),
    )


def test_nothing_is_kept_that_nobody_can_read() -> None:
    state = State(CHEBYSHEV, 2, [Entity("ann", (0, 0))])
    for step in range(500):
        letter = {f"letter {step}": Entity(f"letter {step}", (step, 5))}
        burnt = {f"letter {step - 1}": None} if step else {}
        walked = {"ann": Entity("ann", (step, 0))}
        event = Event(step, "ann", (step, 0), "sang")
        state.commit(step, {**walked, **letter, **burnt}, [event])
        state.collect(step)
        assert state.near((step, 0), 2, step + 1).keys() == {"ann"}
    assert all(size <= 8 for size in sizes(state)), sizes(state)
    assert len(state._cells) <= EMPTY_CELLS_MAX + 9 * 8


def test_rounding_hides_nothing() -> None:
    just_short = Entity("stone", (nextafter(1, 0), 0))
    assert CHEBYSHEV.perceives((2, 0), just_short.position, 1)
    assert State(CHEBYSHEV, 1, [just_short]).near((2, 0), 1, 0) == {
        just_short.name: (0, just_short)
    }


def test_names_are_unique() -> None:
    with pytest.raises(MetropolisError, match="two entities are named 'ann'; names are unique"):
        State(CHEBYSHEV, 1, [Entity("ann", (0, 0)), Entity("ann", (9, 0))])


def test_steps_of_an_entity_are_written_in_order() -> None:
    state = State(CHEBYSHEV, 1, [Entity("ann", (0, 0))])
    state.commit(3, {"ann": Entity("ann", (1, 0))}, [])
    with pytest.raises(AssertionError, match="ann was already written by a step above 2"):
        state.commit(2, {"ann": Entity("ann", (1, 0))}, [])


def test_a_state_goes_on_from_what_it_was() -> None:
    state = State(CHEBYSHEV, 1, [Entity("ann", (0, 0)), Entity("bob", (1, 0))])
    for step in range(3):
        event = Event(step, "ann", (0, 0), "sang", {"verse": step})
        state.commit(step, {"ann": Entity("ann", (step, 0))}, [event])
    entities, events = state.at(3)
    again = State(CHEBYSHEV, 1, entities, 3)
    again.restore_events(events)
    assert again.at(3) == state.at(3)
    assert again.events((0, 0), 1, 3) == events
