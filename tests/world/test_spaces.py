"""The spaces of language behave like Gymnasium's own."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from metropolis.types import MetropolisError
from metropolis.world.spaces import Choice, FreeText, Maybe, Record, misfit


@dataclass(frozen=True)
class Say:
    words: str
    to: str | None = None
    steps: int = 1
    place: tuple[int, int] = (0, 0)


def examples() -> dict[str, gymnasium.Space[Any]]:
    tile = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])
    say = Record(Say, words=FreeText(30), to=Maybe(FreeText()), steps=spaces.Discrete(3))
    return {
        "text": FreeText(5),
        "choice": Choice(["north", "south", None]),
        "maybe": Maybe(spaces.Discrete(5)),
        "record": say,
        "record of a tile": Record(Say, words=Choice(["hm"]), place=tile),
        "nested": spaces.Dict({"seen": spaces.Sequence(say), "mood": Maybe(Choice([1, 2]))}),
    }


@pytest.mark.parametrize("name", examples())
@given(seed=st.integers(0, 2**31))
def test_samples_are_contained_and_follow_the_seed(name: str, seed: int) -> None:
    first, second = examples()[name], examples()[name]
    assert first == second
    first.seed(seed)
    second.seed(seed)
    for _ in range(5):
        sample = first.sample()
        assert sample in first
        assert sample == second.sample()


@pytest.mark.parametrize("name", examples())
def test_pickled_and_copied_they_go_on_alike(name: str) -> None:
    space = examples()[name]
    space.seed(3)
    space.sample()
    again, copied = pickle.loads(pickle.dumps(space)), copy.deepcopy(space)
    assert again == space == copied
    assert repr(again) == repr(space)
    for _ in range(5):
        assert space.sample() == again.sample() == copied.sample()


def test_samples_vary_and_are_plain() -> None:
    for name, space in examples().items():
        space.seed(0)
        samples = [space.sample() for _ in range(40)]
        assert any(sample != samples[0] for sample in samples), name
    say = examples()["record of a tile"].sample()
    assert [type(axis) for axis in say.place] == [int, int]
    assert {type(Maybe(spaces.Discrete(3), seed=1).sample()) for _ in range(9)} <= {
        int,
        type(None),
    }


@given(st.text())
def test_free_text_is_any_text_up_to_its_length(text: str) -> None:
    assert (text in FreeText(10)) == (len(text) <= 10)


def test_what_does_not_belong_is_not_contained() -> None:
    assert 3 not in FreeText()
    assert "east" not in Choice(["north"])
    assert "x" not in Maybe(spaces.Discrete(2))
    record = examples()["record"]
    assert Say("hello", "Ann", 2) in record
    assert Say("hello", "Ann", 3) not in record
    assert Say("x" * 31) not in record
    assert {"words": "hello"} not in record


def test_spaces_differ_by_what_they_hold() -> None:
    every = list(examples().values())
    for i, space in enumerate(every):
        assert [space == other for other in every] == [i == j for j in range(len(every))]
    assert Choice([1]) != Choice([2])
    assert FreeText(1) != FreeText(2)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (3, "it is 3, which is not in the space Dict('mood': Maybe(Choice([1, 2])), 'seen': Sequ"),
        ({"mood": 1}, "it has the keys ['mood']; its space has ['mood', 'seen']"),
        ({"mood": 5, "seen": ()}, "it['mood'] is 5, which is not in the space Choice([1, 2])"),
        ({"mood": 1, "seen": [Say("hm")]}, "it['seen'] is [Say("),
        (
            {"mood": None, "seen": (Say("hm"), Say("hm", steps=7))},
            "it['seen'][1].steps is 7, which is not in the space Discrete(3)",
        ),
        (
            {"mood": None, "seen": (Say("x" * 99),)},
            f"it['seen'][0].words is '{'x' * 78}…, which is not in the space FreeText(30)",
        ),
    ],
)
def test_the_part_that_does_not_belong_is_named(value: Any, sentence: str) -> None:
    assert misfit("it", value, examples()["nested"]).startswith(sentence)


def test_the_place_in_a_tuple_is_named() -> None:
    tile = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])
    assert misfit("it", (1, 4), tile) == "it[1] is 4, which is not in the space Discrete(4)"
    assert misfit("it", (1,), tile) == "it has 1 items; its space has 2"


def test_refusals() -> None:
    with pytest.raises(MetropolisError, match="needs at least one"):
        Choice([])
    with pytest.raises(MetropolisError, match="is not a dataclass"):
        Record(str)
    with pytest.raises(MetropolisError, match="Say has no field 'volume'; its fields are words"):
        Record(Say, volume=FreeText())


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array([1]), (np.array([1, 2]), 1), [1]])
def test_arrays_are_no_choice(value: Any) -> None:
    assert value not in Choice([1, (1, 2), (2, 1)])
