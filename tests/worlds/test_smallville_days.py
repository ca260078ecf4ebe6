"""Residents over days: revised plans, dates of conversations."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from random import Random

import pytest

from metropolis import Client, make_scenario
from metropolis.llm.agent import LLM
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.worlds.smallville import perceiving, planning, prompts
from metropolis.worlds.smallville.author import author
from metropolis.worlds.smallville.memory import Node
from metropolis.worlds.smallville.reacting import SILENCE_S, may_talk
from metropolis.worlds.smallville.resident import Resident
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.state import DAY_S, HOUR_S, Day, Task

NOON_S = 12 * HOUR_S


@pytest.fixture
def ada() -> Resident:
    resident = make_scenario("smallville", agents=1).agents[0]
    assert isinstance(resident, Resident)
    return resident


def revised(me: Resident, now_s: int, answer: str) -> list[Request]:
    """The requests of `revise_tasks`, to a model that answers `answer`."""
    asked: list[Request] = []

    def model(request: Request, random: Random) -> str:
        asked.append(request)
        return answer

    llm = LLM(Client(Scripted(model)), agent=0, step=0, seed=0)
    asyncio.run(planning.revise_tasks(me, now_s, llm))
    return asked


@pytest.mark.parametrize(("left_s", "revises"), [(30, False), (60, True), (1800, True)])
def test_only_the_present_entry_is_revised(ada: Resident, left_s: int, revises: bool) -> None:
    work = Task("working", 8 * HOUR_S, NOON_S)
    lunch = Task("having lunch", NOON_S, 13 * HOUR_S)
    ada.day = Day(0, [], [work, lunch], [Task("writing", 11 * HOUR_S, NOON_S)])
    asked = revised(ada, NOON_S - left_s, "reading (5 minutes)")
    assert bool(asked) == revises
    assert all("writing" in request.text for request in asked), "the plan is not empty"
    assert max(task.end_s for task in ada.day.tasks) == NOON_S, "lunch keeps its time"


def test_an_entry_without_tasks_is_left_to_the_next_activity(ada: Resident) -> None:
    lunch = Task("having lunch", NOON_S, 13 * HOUR_S)
    ada.day = Day(0, [], [Task("working", 0, NOON_S), lunch], [Task("writing", 0, NOON_S)])
    assert not revised(ada, NOON_S + 600, "reading (5 minutes)")
    assert ada.day.tasks == [Task("writing", 0, NOON_S)]


@pytest.mark.parametrize(
    ("days", "said"),
    [(0, "last talked today at 12:00"), (1, "yesterday at 12:00"), (3, "on Monday, 13 February")],
)
def test_decisions_know_the_day_of_the_last_conversation(
    ada: Resident, days: int, said: str
) -> None:
    def decision(now_s: int) -> str:
        return prompts.decide_to_talk(ada, "Bram Okafor", "reading", [], now_s)

    evening_s = NOON_S + 6 * HOUR_S + days * DAY_S
    assert "have not talked yet" in decision(evening_s)
    ada.talked["Bram Okafor"] = NOON_S
    assert said in decision(evening_s)
    assert not may_talk(ada, "Bram Okafor", NOON_S + SILENCE_S - 1)
    assert may_talk(ada, "Bram Okafor", NOON_S + SILENCE_S)


def test_the_author_talks_again_on_another_day_as_on_the_first(ada: Resident) -> None:
    """The share of agreeing answers; the same day is less likely."""

    def share(now_s: int) -> float:
        text = prompts.decide_to_talk(ada, "Celia Marsh", "reading", [], now_s)
        request = Request(
            agent=0,
            step=0,
            function="decide_to_talk",
            prompt=text,
            max_tokens=5,
            temperature=0,
            seed=0,
            priority=0,
            program="",
        )
        return sum(author(request, Random(seed)) == "yes" for seed in range(300)) / 300

    first = share(NOON_S)
    ada.talked["Celia Marsh"] = NOON_S
    assert share(NOON_S + SILENCE_S) < first / 2
    assert share(NOON_S + DAY_S) == first


@pytest.mark.parametrize(("preset", "calls"), [("paper", 1), ("code-1.0", 2)])
def test_a_known_text_keeps_its_importance(ada: Resident, preset: str, calls: int) -> None:
    ada.profile = replace(ada.profile, settings=PRESETS[preset])
    asked = 0

    def model(request: Request, random: Random) -> str:
        nonlocal asked
        asked += 1
        return str(asked + 5)

    llm = LLM(Client(Scripted(model)), agent=0, step=0, seed=0)
    for now_s in (0, 60):
        importance = asyncio.run(perceiving.rate(ada, "event", "the stove is hot", llm))
        node = Node("event", "the stove is hot", now_s, importance, "the stove", "is", "hot")
        ada.memory.add(node)
    assert (asked, importance) == (calls, 5 + calls)
    assert asyncio.run(perceiving.rate(ada, "thought", "the stove is hot", llm)) == 6 + calls


def test_the_review_of_a_day_recalls_no_memory_twice(ada: Resident) -> None:
    asked: list[Request] = []

    def model(request: Request, random: Random) -> str:
        asked.append(request)
        return "7:00"

    ada.day.number = 0
    llm = LLM(Client(Scripted(model)), agent=0, step=0, seed=0)
    asyncio.run(planning.begin_day(ada, DAY_S, llm))
    reviews = [request.text for request in asked if request.function == "revise_identity"]
    assert len(reviews) == 4
    for text in reviews[:3]:  # the fourth asks for the plan
        recalled = re.findall(r"^\d+\. .+$", text, re.MULTILINE)
        texts = [line.partition(". ")[2] for line in recalled]
        assert len(texts) == len(set(texts)) > 2
