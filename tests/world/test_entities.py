"""Entities and events are plain, frozen data."""

import copy
import math
import pickle
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.types import MetropolisError
from metropolis.world.entities import Entity, Event, freeze, thaw

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(plain)
def test_values_come_back(value: object) -> None:
    assert thaw(freeze(value)) == value
    assert freeze(thaw(freeze(value))) == freeze(value)


@given(st.dictionaries(st.text(), plain, max_size=3))
def test_entities_and_events_are_copied_and_pickled(state: dict[str, object]) -> None:
    for frozen in (Entity("x", (1, 2), "stone", state), Event(3, "x", (1, 2), "fell", state)):
        assert pickle.loads(pickle.dumps(frozen)) == frozen
        assert copy.deepcopy(frozen) == frozen


def test_readers_cannot_change_what_they_read() -> None:
    mine = {"friends": ["bob"], "mood": {"joy": 1}}
    ann = Entity("ann", (0, 0), state=mine)
    mine["friends"].append("cleo")
    assert ann["friends"] == ("bob",)
    with pytest.raises(TypeError):
        ann["mood"]["joy"] = 2
    with pytest.raises(AttributeError):
        ann.position = (1, 1)


def test_numbers_of_numpy_become_plain() -> None:
    state = Entity("x", (np.int64(1), np.float32(2)), state={"n": np.int64(3), "x": np.float64(4)})
    assert state.position == (1.0, 2.0)
    assert [type(value) for value in (*state.position, state["n"], state["x"])] == [
        float,
        float,
        int,
        float,
    ]


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        (
            {"friends": {"bob"}},
            r"^the state of 'x', key 'friends': \{'bob'\} has the type set; a world's values are",
        ),
        ({"at": {3: "x"}}, "the key 3 of a world's value should be a text"),
        ({"f": np.zeros(2)}, "has the type ndarray"),
    ],
)
def test_values_that_cannot_be_shared_are_refused(value: dict, flaw: str) -> None:
    with pytest.raises(MetropolisError, match=flaw):
        Entity("x", (0, 0), state=value)


class Mood(str, Enum):  # noqa: UP042 -- as people write it
    HAPPY = "happy"


def test_what_a_checkpoint_cannot_keep_is_refused_or_made_plain() -> None:
    for value in (math.inf, -math.inf, math.nan, np.float64("nan"), [{"deep": math.inf}]):
        with pytest.raises(MetropolisError, match="which JSON does not support"):
            Entity("x", (0, 0), state={"best": value})
    kept = Entity("x", (0, 0), state={"mood": Mood.HAPPY})
    assert f"{kept['mood']}" == "happy"


@pytest.mark.parametrize(
    "place", [("a", "b"), (None, 0), (1,), 3, None, "12", ("1", "2"), (1, 2, 3), (10**400, 0)]
)
def test_a_position_is_two_numbers(place: object) -> None:
    with pytest.raises(MetropolisError, match=r"the position of 'x' is .*; it should be two"):
        Entity("x", place)  # type: ignore[arg-type]


def test_states_that_contain_themselves_are_refused() -> None:
    state: dict[str, Any] = {"a": []}
    state["a"].append(state)
    with pytest.raises(MetropolisError, match="the state of 'x' contains itself or is"):
        Entity("x", (0, 0), state=state)
    with pytest.raises(MetropolisError, match="the event 'fell' of 'x' contains itself or"):
        Event(3, "x", (0, 0), "fell", state)


def test_names_are_not_empty() -> None:
    with pytest.raises(MetropolisError, match="the name of an entity is ''; it should be a"):
        Entity("", (0, 0))
