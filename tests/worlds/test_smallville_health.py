"""The measures of a run's health, on records and requests written by hand; news by marks."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pytest

from metropolis.llm.base import Request
from metropolis.maps.town import alderbrook
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.record import StepRecord
from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.health import Health
from metropolis.worlds.smallville.memory import Memory, Node
from metropolis.worlds.smallville.news import Spread, tells
from metropolis.worlds.smallville.past import Past
from metropolis.worlds.smallville.story import Story
from metropolis.worlds.smallville.world import Doing, SmallVille

TWO = town_profiles()[:2]
ADA, BRAM = TWO[0].name, TWO[1].name
DAY_STEPS = 8640
MONDAY = date(2023, 2, 13)


def talk(step: int, *lines: str) -> Event:
    said = [(BRAM if turn % 2 == 0 else ADA, text) for turn, text in enumerate(lines)]
    return Event(step, BRAM, (0, 0), "conversation", {"partner": ADA, "about": "", "lines": said})


def body(name: str, at: tuple[int, int], **state: Any) -> Entity:
    return Entity(name, at, AGENT, {"asleep": False} | state)


def request(function: str, text: str, step: int = 0) -> Request:
    return Request(
        agent=0,
        step=step,
        function=function,
        prompt=text,
        max_tokens=5,
        temperature=0,
        seed=0,
        priority=0,
        program="",
    )


@pytest.fixture
def health() -> Health:
    return Health(SmallVille(alderbrook().map, TWO), TWO)


def test_residents_begin_where_their_past_ends() -> None:
    past = Past(at=TWO[1].at, doing=Doing("reading"))
    health = Health(SmallVille(alderbrook().map, TWO, pasts={ADA: past}), TWO)
    health.read(StepRecord(0, {}, {ADA: body(ADA, TWO[1].at)}, []))
    report = health.report({})
    assert report["walls_crossed"] == 0
    assert report["days"][0]["sleep_hours"] == pytest.approx(10 / 3600 / 2), "Bram's"


def test_laws_and_rhythm(health: Health) -> None:
    assert health.report({})["tiles_shared"] is None
    health.read(StepRecord(0, {}, {ADA: body(ADA, TWO[1].at)}, []))
    health.read(StepRecord(1, {}, {BRAM: body(BRAM, TWO[1].at)}, []))
    report = health.report({})
    assert report["walls_crossed"] == 1, "Ada moved more than one tile"
    assert report["tiles_shared"] == report["days"][0]["tiles_shared"] == 1
    assert report["tiles_shared_by_day"] is None, "there is no whole day"
    assert report["days"][0]["sleep_hours"] == pytest.approx(10 / 3600 / 2)


def test_days_after_the_first_are_compared() -> None:
    health = Health(SmallVille(alderbrook().map, TWO, start=datetime(2023, 2, 13)), TWO)
    for step in range(2 * DAY_STEPS):
        writes = {BRAM: body(BRAM, TWO[0].at)} if step == DAY_STEPS else {}
        talks = [talk(step, "Hello there. Hello there.")] if step in {5, 9, DAY_STEPS} else []
        health.read(StepRecord(step, {}, writes, talks))
    report = health.report({})
    assert [day["tiles_shared"] for day in report["days"]] == [0, 1]
    assert report["tiles_shared_by_day"] == 0.5
    assert [day["conversations"] for day in report["days"]] == [2, 1]
    assert report["later_conversations"] == report["last_conversations"] == 0.5
    assert report["later_sentences"] == 1, "one sentence, however often it is said"
    assert report["distinct_sentences"] == pytest.approx(1 / 6)


def test_hours_and_news_are_those_of_whole_days() -> None:
    ada = replace(TWO[0], workplace="Willow Lodge", news={"chess evening": ""})
    people = [ada, replace(TWO[1], workplace="", news={"half price": ""})]
    town = SmallVille(alderbrook().map, people, start=datetime(2023, 2, 13, 12))
    health = Health(town, people)
    noon, hour = DAY_STEPS // 2, 360
    said = {10: ["It is half price."], noon + 10: ["Hello.", "There is a chess evening."]}
    said |= {noon + DAY_STEPS: ["It is half price."], noon + 2 * DAY_STEPS: ["Hello."]}
    assert health.report({})["sleep_hours"] is None
    for step in range(noon + 3 * DAY_STEPS):
        writes = {}
        if step in (noon + 8 * hour, noon + 12 * hour):  # up at eight on Tuesday, abed at noon
            writes = {ADA: body(ADA, ada.at, asleep=step > noon + 8 * hour)}
        talks = [talk(step, *said[step])] if step in said else []
        health.read(StepRecord(step, {}, writes, talks))
    report = health.report({})
    assert [day["news_heard"] for day in report["days"]] == [1, 1, 0, 0]
    assert report["news_heard"] == 0
    assert report["sleep_hours"] == pytest.approx((20 + 3 * 24 + 2 * 24) / 2 / 3)
    assert report["work_hours"] == pytest.approx(4 / 3)
    assert report["last_conversations"] == report["later_conversations"] == 1


def test_prompts_and_memories(health: Health) -> None:
    health.watch(request("decide_to_talk", "Facts:\n1. one\n2. two\n3. one\n"))
    for text in ("a walk", "a walk", "a fall"):
        health.watch(request("event_poignancy", f"Rate.\nEvent: {text}\nRating:"))
    health.watch(request("new_decomp_schedule", "planned (work):\n\nIt is 10:20"))
    health.watch(request("new_decomp_schedule", "planned (work):\n[10:00-10:20] work\n\nIt is"))
    texts = ("a walk", "a walk", "a fall")
    memory = Memory([Node("event", text, 0, 1, ADA, "is", text) for text in texts])
    report = health.report({ADA: memory})
    assert report["duplicates_recalled"] == pytest.approx(1 / 3)
    assert report["texts_rated_again"] == pytest.approx(1 / 3)
    assert (report["plans_revised"], report["empty_plans"]) == (2, 1)
    assert (report["memories"], report["duplicate_memories"]) == (3, 1)


def test_news_spreads_in_any_words_with_its_mark() -> None:
    spread = Spread(TWO, MONDAY)
    assert spread.knowing["half price"] == {BRAM}
    (told,) = spread.listen(talk(3, "Hello.", "Hello.", "At the Inn dinners are HALF PRICE today."))
    assert (told.turn, told.news, told.hearer) == (2, "half price", ADA)
    assert not list(spread.listen(talk(9, "It is half price, remember?")))


def test_owners_know_a_fact_from_its_day_on() -> None:
    dated = replace(TWO[0], news={"2023-02-14: chess evening": "There is a chess evening."})
    for start, days in ((datetime(2023, 2, 13, 6), [0, 1, 1]), (datetime(2023, 2, 15), [1])):
        health = Health(SmallVille(alderbrook().map, TWO, start=start), [dated, TWO[1]])
        hours = 24 * len(days) - start.hour
        for step in range(hours * 360):
            health.read(StepRecord(step, {}, {}, []))
        found = [day["knowing"]["chess evening"] for day in health.report({})["days"]]
        assert found == days


def test_a_story_counts_no_owner_before_the_day_of_the_fact() -> None:
    fact = {"2023-02-14: chess evening": "There is a chess evening."}
    owners = [replace(TWO[0], name=f"Owner {number}", news=fact) for number in range(8)]
    world = SmallVille(alderbrook().map, [*owners, *TWO], start=datetime(2023, 2, 13))
    for step, told in ((5, False), (DAY_STEPS, True)):
        story = Story(world, [*owners, *TWO])
        lines = story(StepRecord(step, {}, {}, [talk(step, "Is there a chess evening?")]))
        assert any("10 people know now" in line for line in lines) == told


def test_marks_tell_the_town_s_facts_apart() -> None:
    texts = Spread(town_profiles(), MONDAY).texts
    for mark in texts:
        assert [own for own, text in texts.items() if tells(text, mark)] == [mark]
