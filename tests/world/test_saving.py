"""Agents' own state survives a run's end: saved as JSON and restored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.types import MetropolisError
from metropolis.world.base import Agent
from metropolis.world.saved_check import Sample, SavedWhenRead, check_saved
from metropolis.world.saving import copies_of, restore, save, save_json


@dataclass
class Memory:
    text: str
    step: int
    importance: float = 0.0
    about: tuple[str, ...] = ()


@dataclass
class Villager(Agent):
    name: str
    memories: list[Memory] = field(default_factory=list)
    last: Memory | None = None
    known: dict[int, str] = field(default_factory=dict)
    home: tuple[int, int] = (0, 0)
    met: set[str] = field(default_factory=set)
    woke: datetime = datetime(2023, 2, 13, 7)
    vector: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    matrix: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    _path: list[int] = field(default_factory=list)

    def proceed(self, observation: Any, llm: Any) -> Any:
        return None


memories = st.builds(
    Memory,
    st.text(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.text(), max_size=2).map(tuple),
)
villagers = st.builds(
    Villager,
    name=st.text(),
    memories=st.lists(memories, max_size=3),
    last=st.none() | memories,
    known=st.dictionaries(st.integers(-(2**53), 2**53), st.text(), max_size=3),
    home=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    met=st.sets(st.text(), max_size=3),
    woke=st.datetimes(),
    vector=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4).map(
        lambda values: np.array(values, np.float32)
    ),
    matrix=st.integers(0, 2**62).map(lambda n: np.array([[n, 1], [2, 3]])),
    _path=st.just([1, 2]),
)


@given(villagers)
def test_a_dataclass_comes_back_as_it_was(villager: Villager) -> None:
    saved = json.loads(json.dumps(save(villager)))
    again = Villager("somebody else")
    restore(again, saved)
    for name in ("name", "memories", "last", "known", "home", "met", "woke"):
        assert getattr(again, name) == getattr(villager, name), name
        assert type(getattr(again, name)) is type(getattr(villager, name))
    for name in ("vector", "matrix"):
        np.testing.assert_array_equal(getattr(again, name), getattr(villager, name))
    assert again.vector.dtype == np.float32
    assert again.matrix.dtype == np.int64
    assert again._path == [], "fields with an underscore are not saved"


@given(villagers)
def test_json_is_that_of_the_plain_data(villager: Villager) -> None:
    assert json.loads(bytes(save_json(villager))) == json.loads(json.dumps(save(villager)))


class Counter(Agent):
    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def proceed(self, observation: Any, llm: Any) -> Any:
        self.count += 1

    def save(self) -> Any:
        return {"count": self.count}

    def restore(self, saved: Any) -> None:
        self.count = saved["count"]


def test_two_methods_do_it_for_anything_else() -> None:
    counter, again = Counter("ann"), Counter("ann")
    counter.count = 7
    restore(again, save(counter))
    assert again.count == 7
    assert json.loads(bytes(save_json(counter))) == {"count": 7}


class Nothing(Agent):
    name = "ann"

    def proceed(self, observation: Any, llm: Any) -> Any:
        return None


@dataclass
class Holder(Agent):
    name: str
    held: Any = None
    proceed = Nothing.proceed


@dataclass
class Mapper(Agent):
    name: str
    places: list[dict[tuple[int, int], str]] = field(default_factory=list)
    proceed = Nothing.proceed


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (
            Mapper("ann"),  # though there is none yet
            r"^the field 'places' of the agent 'ann' \(Mapper\) has tuples as keys \(list\[dict\["
            r"tuple\[int, int\], str\]\]\), which cannot be saved; keys should be texts,",
        ),
        (
            Nothing(),
            r"^the agent 'ann' \(Nothing\) cannot be saved; make it a dataclass, or define save\(\)"
            r" and restore\(saved\)$",
        ),
        (
            Holder("ann", object()),
            r"^the field 'held' of the agent 'ann' \(Holder\) cannot be saved \(object is not "
            r"plain data\); its fields should be plain data, or it should define save\(\) "
            r"and restore\(saved\)$",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused(agent: Agent, sentence: str) -> None:
    for saving in (save, save_json):
        with pytest.raises(MetropolisError, match=sentence):
            saving(agent)


@pytest.mark.parametrize("held", [float("nan"), [float("inf")], "half \ud800"])
def test_what_json_cannot_hold_is_refused(held: Any) -> None:
    for saving in (save, save_json):
        with pytest.raises(MetropolisError, match=r"'ann'.*cannot be saved"):
            saving(Holder("ann", held))


@pytest.mark.parametrize("change", [{"home": "north"}, {"home": None}, {"home": [1, 2, 3]}])
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    saved = save(Villager("ann")) | change
    with pytest.raises(MetropolisError, match=r"\(Villager\) cannot be restored"):
        restore(Villager("ann"), saved)


def test_the_value_that_does_not_fit_is_shown() -> None:
    villager = Villager("ann", known={98.0: "a"})  # type: ignore[dict-item]
    said = r"'known' of .* its saved state \{'98\.0': 'a'\} \(Expected `int`, got `str`"
    with pytest.raises(MetropolisError, match=said):
        check_saved(villager, save(villager))


@dataclass
class Vague(Agent):
    name: str = "ann"
    known: dict = field(default_factory=dict)  # type: ignore[type-arg]

    def proceed(self, observation: Any, llm: Any) -> Any:
        return None


def test_a_field_whose_type_does_not_name_its_items_is_found() -> None:
    agent = Vague()
    check_saved(agent, save(agent))
    agent.known[1] = "one"
    saved = SavedWhenRead([agent])
    with pytest.raises(MetropolisError, match=r"the field 'known' of the agent 'ann' \(Vague\) is"):
        check_saved(agent, save(agent))
    with pytest.raises(MetropolisError, match=r"dict\[int, str\]"):
        saved[0]


@dataclass
class Tired(Agent):
    name: str = "ann"
    energy: float = 0
    past: list[float] = field(default_factory=lambda: [1.5, 2])

    def proceed(self, observation: Any, llm: Any) -> Any:
        return None


def test_whole_numbers_in_fields_of_fractions_are_told_only_if_it_matters() -> None:
    agent = Tired()
    check_saved(agent, save(agent))
    with pytest.raises(MetropolisError, match=r"'energy' .* is 0 and would be restored as 0\.0"):
        check_saved(agent, save(agent), exact=True)


def test_state_beside_the_fields_is_found() -> None:
    agent = Vague()
    agent.mood = 5  # type: ignore[attr-defined]
    with pytest.raises(MetropolisError, match="has set 'mood', which is not one of its fields"):
        check_saved(agent, save(agent))


def test_a_sample_has_all_of_the_first_and_ever_fewer() -> None:
    sample = Sample()
    taken = [number for number in range(1, 100_001) if sample.takes(int)]
    assert taken[:21] == [*range(1, 22)]
    assert 150 < len(taken) < 250
    assert all(later < 1.06 * number + 1 for number, later in pairwise(taken))


def test_a_missing_field_is_refused() -> None:
    saved = save(Villager("ann"))
    del saved["known"]
    with pytest.raises(
        MetropolisError, match=r"'known' of .* cannot be restored from its saved state"
    ):
        restore(Villager("ann"), saved)


def test_types_that_cannot_be_found_are_refused() -> None:
    class Unseen:
        pass

    @dataclass
    class Local(Holder):
        seen: Unseen | None = None

    with pytest.raises(MetropolisError, match=r"cannot be saved .*'Unseen' is not defined"):
        save(Local("ann"))


def test_copies_share_what_the_agents_share() -> None:
    ann, bob = Villager("ann"), Villager("bob")
    ann._path = bob._path
    copies = copies_of([ann, bob])
    assert [save(one) for one in copies] == [save(ann), save(bob)]
    assert copies[0]._path is copies[1]._path  # type: ignore[attr-defined]
    assert copies[0]._path is not ann._path  # type: ignore[attr-defined]


def test_the_agent_that_cannot_be_copied_is_named() -> None:
    ann, bob = Villager("ann"), Villager("bob")
    bob._path = [Lock()]  # type: ignore[list-item]
    with pytest.raises(MetropolisError, match=r"^the agent 'bob' \(Villager\) cannot be copied"):
        copies_of([ann, bob])


@dataclass
class Counting(Villager):
    calls = 0  # no field: it has no type


class Plain(Villager):  # no dataclass, so the annotation makes no field
    calls: int = 0


@pytest.mark.parametrize("kind", [Counting, Plain])
def test_state_in_a_class_attribute_is_found(kind: Any) -> None:
    agent = kind("ann", matrix=np.ones((1, 1), np.int64))
    check_saved(agent, save(agent))
    agent.calls += 1
    with pytest.raises(MetropolisError, match="has set 'calls', which is not one of its fields"):
        check_saved(agent, save(agent))


@dataclass
class Measures(Agent):
    name: str = "ann"
    any: np.ndarray = field(default_factory=lambda: np.zeros(2))  # type: ignore[type-arg]
    short: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(2, np.float32))

    def proceed(self, observation: Any, llm: Any) -> Any:
        return None

    @cached_property
    def total(self) -> float:
        return float(self.any.sum())


def test_arrays_keep_the_type_of_their_numbers_or_are_refused() -> None:
    agent = Measures()
    assert agent.total == 0  # a cached property is no state
    check_saved(agent, save(agent))
    agent.any = np.zeros(2, np.float32)
    with pytest.raises(
        MetropolisError,
        match=(
            r"the field 'any' of the agent 'ann' .* is an array of float32 of shape \(2,\) and "
            r"would be restored as an array of float64 of shape \(2,\); .* or numpy.typing.NDArray"
        ),
    ):
        check_saved(agent, save(agent))


@dataclass
class Task:
    what: str = "dig"
    parts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Appointment:
    at: datetime
    where: str


@dataclass
class Worker(Villager):
    tasks: list[Task] = field(default_factory=list)
    current: Task | None = None
    parts: list[str] = field(default_factory=list)
    woke_first: datetime = datetime(2023, 2, 13, 7)
    appointments: list[Appointment] = field(default_factory=list)


def test_one_object_in_two_places_is_refused() -> None:
    matrix = np.ones((1, 1), np.int64)
    agent = Worker("ann", matrix=matrix, tasks=[Task(), Task()], current=Task())
    agent.woke_first = agent.woke  # cannot change, so two objects are as good as one
    agent.appointments = [Appointment(agent.woke, "mill")] * 2
    check_saved(agent, save(agent))
    agent.current = agent.tasks[1]
    with pytest.raises(
        MetropolisError, match=r"has one Task in two places, tasks\[1\] and current: restored, they"
    ):
        check_saved(agent, save(agent))
    agent.current, agent.parts = None, agent.tasks[0].parts
    with pytest.raises(
        MetropolisError, match=r"one list in two places, tasks\[0\]\.parts and parts"
    ):
        check_saved(agent, save(agent))


@dataclass
class Gardener(Villager):
    beds: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, 3), np.int64))
    row: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    task: Task = field(default_factory=Task)


def test_views_of_one_array_are_refused() -> None:
    agent = Gardener("ann", matrix=np.ones((1, 1), np.int64))
    whole = np.zeros((3, 3), np.int64)
    agent.beds, agent.row = whole[:2], whole[2]  # of one array, and apart
    check_saved(agent, save(agent))
    agent.row = agent.beds[1]
    with pytest.raises(MetropolisError, match=r"one array in two places, beds and row, of which"):
        check_saved(agent, save(agent))


def test_an_attribute_of_a_nested_object_that_is_no_field_is_refused() -> None:
    agent = Gardener("ann", matrix=np.ones((1, 1), np.int64))
    agent.task._cache = 3  # type: ignore[attr-defined]
    check_saved(agent, save(agent))
    agent.task.done_at = 3  # type: ignore[attr-defined]
    with pytest.raises(
        MetropolisError,
        match=r"'ann' \(Gardener\) has set 'done_at' of the Task at task, which is not one of its",
    ):
        check_saved(agent, save(agent))
