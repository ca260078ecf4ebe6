"""Where residents go, whom they talk to, and for whom they wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from metropolis.maps.town import alderbrook
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.geography import Atlas
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.perceiving import Noticed
from metropolis.worlds.smallville.planning import chooses
from metropolis.worlds.smallville.reacting import SILENCE_S, WAITING, react
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.state import DAY_S, HOUR_S, Activity, Day, Task
from metropolis.worlds.smallville.targets import give_way, target
from metropolis.worlds.smallville.world import Doing, Observation, Seen

ATLAS = Atlas(alderbrook().map)
CAFE = ATLAS.places["Lantern Café"]["café"]
CHAIRS = CAFE["chair"]
PLACE = "Lantern Café: café"
NAMES = [profile.name for profile in town_profiles()]
NOON_S = 12 * HOUR_S


@dataclass
class Model:
    """A model with one answer; keeps its prompts by function."""

    answer: str
    prompts: dict[str, list[str]] = field(default_factory=dict)

    async def chat(self, prompt: str, *, function: str, **_: Any) -> Any:
        self.prompts.setdefault(function, []).append(prompt)
        return type("Answer", (), {"text": self.answer})


def resident(step: int = 1000) -> Resident:
    me = Resident(town_profiles()[0], ATLAS)
    me.begin_step(0, step)
    me.day = Day(0, [], [Task("lunch", 11 * HOUR_S, 14 * HOUR_S)])
    me.day.tasks = [Task("eating soup", 11 * HOUR_S, 14 * HOUR_S)]
    return me


def seen(number: int, at: tuple[int, int], doing: str = "eating", **changed: Any) -> Seen:
    fields = {"thing": "chair", "asleep": False, "until_s": NOON_S + 1200, "free": True} | changed
    return Seen(NAMES[number], *at, doing, PLACE, fields.pop("thing"), "", **fields)


def reacts(me: Resident, others: list[Seen], model: Model, now_s: int = NOON_S) -> Any:
    fresh = [Noticed(f"{of.name} is {of.doing}", of.name, "is", of.doing) for of in others]
    observation = Observation(now_s, *me.profile.at, tuple(others))
    return asyncio.run(react(me, observation, fresh, now_s, model))  # type: ignore[arg-type]


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(CHAIRS)), st.integers(0, 99))
def test_free_tiles_are_preferred(taken: set[tuple[int, int]], step: int) -> None:
    me, here = resident(step), CAFE["counter"][0]
    people = tuple(seen(number, tile) for number, tile in enumerate(sorted(taken), 1))
    chosen = target(me, Observation(NOON_S, *here, people), CHAIRS)
    drawn = resident(step).random.sample(CHAIRS, 4)
    free = [tile for tile in drawn if tile not in taken]
    assert chosen in (free or drawn)
    lengths = {tile: len(ATLAS.walk(here, tile)) for tile in free or drawn}
    assert lengths[chosen] == min(lengths.values())


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(CHAIRS), min_size=1), st.integers(0, 99))
def test_a_taken_tile_is_left_to_others(taken: set[tuple[int, int]], step: int) -> None:
    me, here = resident(step), CAFE["counter"][0]
    goal = Random(step).choice(CHAIRS)
    me.activity = Activity("eating", PLACE, "chair", "", goal)
    people = tuple(seen(number, tile) for number, tile in enumerate(sorted(taken), 1))
    give_way(me, Observation(NOON_S, *here, people))
    if goal not in taken or taken == set(CHAIRS):
        assert me.activity.goal == goal
    else:
        assert me.activity.goal in set(CHAIRS) - taken


@pytest.mark.parametrize(("place", "thing"), [("", ""), (PLACE, "<random>"), ("No inn: bar", "")])
def test_an_imported_activity_may_have_no_place_on_the_map(place: str, thing: str) -> None:
    me = resident()
    me.activity = Activity("eating", place, thing, "", CHAIRS[0])
    give_way(me, Observation(NOON_S, *CAFE["counter"][0], (seen(1, CHAIRS[0]),)))
    assert me.activity.goal == CHAIRS[0]


def test_one_of_the_new_people_is_asked_about() -> None:
    chosen = set()
    for step in range(1000, 1030):
        me, model = resident(step), Model("no")
        others = [seen(number, CHAIRS[number]) for number in (1, 2, 3)]
        assert reacts(me, others, model) == ("", None)
        (prompt,) = model.prompts["decide_to_talk"]
        chosen |= {of.name for of in others if f"sees {of.name}" in prompt}
        assert reacts(me, others, Model("yes"))[0] in {of.name for of in others}
    assert len(chosen) == 3


def test_nobody_asks_at_the_wrong_moment() -> None:
    other, model = CHAIRS[1], Model("yes")
    me = resident()
    assert reacts(me, [seen(1, other)], model, 23 * HOUR_S) == ("", None)
    assert reacts(me, [seen(1, other, asleep=True)], model) == ("", None)
    assert reacts(me, [seen(1, other, free=False)], model) == ("", None)
    assert reacts(me, [seen(1, other, f"{WAITING} eating")], model) == ("", None)
    me.talked[NAMES[1]] = NOON_S - SILENCE_S + 1
    assert reacts(me, [seen(1, other)], model) == ("", None)
    assert not model.prompts
    me.talked[NAMES[1]] -= 1
    assert reacts(me, [seen(1, other)], model) == (NAMES[1], None)


def test_when_and_about_what_they_last_talked() -> None:
    me, model = resident(), Model("no")
    reacts(me, [seen(1, CHAIRS[1])], model)
    for text, now_s in (("soup", 9 * HOUR_S), ("the flood of 1911", DAY_S + 9 * HOUR_S)):
        me.talked[NAMES[1]] = now_s
        chat = f"{me.name} and {NAMES[1]} are conversing about {text}"
        me.memory.add(Node("chat", chat, now_s, 4, me.name, "talks", NAMES[1]))
    reacts(me, [seen(1, CHAIRS[1])], model, DAY_S + NOON_S)
    first, second = model.prompts["decide_to_talk"]
    assert "have not talked yet" in first
    assert "last talked today at 09:00, about the flood of 1911." in second


def test_waiting_lasts_until_a_minute_before_the_other_is_done() -> None:
    me, model = resident(), Model("wait (20 minutes)")
    me.talked[NAMES[1]] = NOON_S
    me.activity = Activity("eating soup", PLACE, "chair", "in use", CHAIRS[0], NOON_S + 3000)
    talk_to, waits = reacts(me, [seen(1, CHAIRS[0])], model)
    until_s = NOON_S + 1200 - 60
    what = f"{WAITING} eating soup"
    assert (talk_to, waits) == ("", Doing(what, "⌛", PLACE, until_s=until_s))
    assert me.activity == Activity(what, PLACE, "chair", "", me.profile.at, until_s)
    assert me.day.tasks[-1] == Task("wait", until_s, 14 * HOUR_S)
    assert list(model.prompts) == ["decide_to_react", "new_decomp_schedule"]
    again = Model("wait")
    assert reacts(me, [seen(2, CHAIRS[0])], again) == ("", None), "it waits already"
    assert not again.prompts


def test_nobody_waits_from_23_o_clock() -> None:
    for now_s, waits in ((23 * HOUR_S - 10, True), (23 * HOUR_S, False), (DAY_S - 10, False)):
        me, model = resident(), Model("wait")
        me.talked[NAMES[1]] = now_s
        me.activity = Activity("eating soup", PLACE, "chair", "in use", CHAIRS[0], DAY_S)
        me.day.tasks = [Task("eating soup", 22 * HOUR_S, DAY_S)]
        other = seen(1, CHAIRS[0], until_s=now_s + 1200)
        assert (reacts(me, [other], model, now_s)[1] is not None) == waits
        assert bool(model.prompts) == waits


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("Yes.", True),
        ("yes, though they talked yesterday", True),
        ("No, they talked yesterday.", False),
        ("Not now: yes would be rude", False),
        ("yesterday", False),
        ("", False),
    ],
)
def test_the_first_of_two_answers_counts(answer: str, chosen: bool) -> None:
    assert chooses(answer, "yes", "no|not") == chosen


def test_no_need_to_wait_is_going_on() -> None:
    for answer in ("go on; no need to wait", "No need to wait.", "They should not wait"):
        assert not chooses(answer, r"wait\w*", "go on|no|not")
    assert chooses("Ann should wait, not go on", r"wait\w*", "go on|no|not")
