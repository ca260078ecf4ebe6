"""A new day of a resident: what it asks itself, and what it remembers of the plan."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from metropolis import Client, make_scenario
from metropolis.llm.agent import LLM
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.worlds.smallville.author import author
from metropolis.worlds.smallville.planning import begin_day, next_activity
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.state import DAY_S, HOUR_S, Activity, Day, Task
from metropolis.worlds.smallville.world import Observation


def begun(me: Resident, now_s: int) -> list[Request]:
    """The requests of the beginning of a day, without those for its hours."""
    asked: list[Request] = []

    def listening(request: Request, random: Random) -> str:
        if request.function != "hourly_schedule":
            asked.append(request)
        return author(request, random)

    me.now_s = now_s
    llm = LLM(Client(Scripted(listening)), agent=0, step=0, seed=0)
    asyncio.run(begin_day(me, now_s, llm))
    return asked


def test_the_first_day_and_a_later_one() -> None:
    ada = make_scenario("smallville", agents=1).agents[0]
    assert isinstance(ada, Resident)
    first = begun(ada, 6 * HOUR_S)
    assert [request.function for request in first] == ["wake_up_hour", "daily_plan"]
    monday, goal = ada.day.outline, ada.goal
    later = begun(ada, DAY_S)
    assert [request.function for request in later] == ["wake_up_hour"] + 4 * ["revise_identity"]
    notes, feelings, status, plan = (request.text for request in later[1:])
    assert "bear in mind" in notes
    assert "look back at yesterday" in feelings
    assert "On Monday, 13 February:\n1. " in notes
    assert "Ada Whitlock's plan for Monday" in notes
    assert goal in status
    assert "plan for the day" in plan
    assert f"Present goal: {ada.goal}" in plan, "the plan follows from the new goal"
    assert not any("Plan for the day: " in request.text for request in later), "that of yesterday"
    assert len(ada.day.outline) > 3
    assert ada.day.hours[-1].end_s == 2 * DAY_S
    plans = [node for node in ada.memory.nodes if node.predicate == "plans"]
    assert [node.importance for node in plans] == [5, 5]
    for node, day, outline in zip(
        plans, ("Monday, 13", "Tuesday, 14"), (monday, ada.day.outline), strict=True
    ):
        assert node.text == f"Ada Whitlock's plan for {day} February: {'; '.join(outline)}."


@pytest.mark.parametrize("left_s", [10, 50, 59])
def test_an_activity_that_ends_in_the_last_minute_goes_on_until_midnight(left_s: int) -> None:
    ada = make_scenario("smallville", agents=1).agents[0]
    assert isinstance(ada, Resident)
    ada.day = Day(0, ["reads"], [Task("reading by the fire", 7 * HOUR_S, DAY_S)], [])
    now_s, (x, y) = DAY_S - left_s, ada.profile.at
    ada.activity = Activity("tidying", "Willow Lodge: room 2", until_s=now_s)
    llm = LLM(Client(Scripted(author)), agent=0, step=0, seed=0)
    assert asyncio.run(next_activity(ada, Observation(now_s, x, y), now_s, llm)) is None
    assert (ada.activity.what, ada.activity.until_s) == ("tidying", DAY_S)
    assert not ada.day.tasks
