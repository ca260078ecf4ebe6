"""The scripted author answers every function in the form the residents read, and so do others."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis import Client, Simulation, make_scenario
from metropolis.llm.agent import LLM
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.llm.tokens import approximate_tokens
from metropolis.maps.town import alderbrook
from metropolis.worlds.smallville import planning, town_profiles
from metropolis.worlds.smallville.author import FUNCTIONS, author, small, talk
from metropolis.worlds.smallville.author.errands import the
from metropolis.worlds.smallville.author.lines import LINES, SHORT_LINES, Scene, say
from metropolis.worlds.smallville.author.plans import (
    hourly_schedule,
    new_decomp_schedule,
    wake_up_hour,
)
from metropolis.worlds.smallville.author.prompt import Prompt
from metropolis.worlds.smallville.dialogue import UTTERANCES_MAX, Utterance
from metropolis.worlds.smallville.recorded import TOKENS
from metropolis.worlds.smallville.reflecting import insight_of
from metropolis.worlds.smallville.state import DAY_S
from metropolis.worlds.smallville.talking import utterance_of
from metropolis.worlds.smallville.world import SmallVille

SEEN = 20
"""Requests kept of each function."""
DETERMINED = {
    "event_triple",
    "act_obj_event_triple",
    "action_sector",
    "summarize_conversation",
    "focal_pt",
}
"""The functions whose answer follows from the prompt alone."""


@pytest.fixture(scope="module")
def asked() -> dict[str, list[Request]]:
    """What the people of one house ask from an evening to the morning after."""
    scenario = make_scenario("smallville", agents=6)
    evening = SmallVille(alderbrook().map, town_profiles()[:6], start=datetime(2023, 2, 13, 18))
    found: dict[str, list[Request]] = defaultdict(list)

    def listening(request: Request, random: Random) -> str:
        if len(found[request.function]) < SEEN:
            found[request.function].append(request)
        return author(request, random)

    client = Client(Scripted(listening))
    Simulation(evening, scenario.agents, client).run(6 * 360 + 1)
    llm = LLM(Client(Scripted(listening)), agent=0, step=0, seed=0)
    asyncio.run(scenario.agents[0].interview("What do you know about the festival?", llm))
    return found


def test_every_function_is_asked_for(asked: dict[str, list[Request]]) -> None:
    assert set(asked) == set(FUNCTIONS)


def test_prompts_are_about_as_long_as_the_original_s(asked: dict[str, list[Request]]) -> None:
    for function, (tokens, _) in TOKENS.items():
        lengths = [approximate_tokens(request.text) for request in asked[function]]
        assert 0.6 < sum(lengths) / len(lengths) / tokens < 1.7, function


def answers(requests: list[Request]) -> list[str]:
    return [author(request, Random(seed)) for request in requests for seed in range(3)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_answers_differ_by_seed_only(asked: dict[str, list[Request]], function: str) -> None:
    for request in asked[function]:
        answer = author(request, Random(1))
        assert answer.strip()
        assert answer == author(request, Random(1))
        assert "{" not in answer or function == "iterative_convo"
    seeds = 400 if function == "decide_to_react" else 20  # it waits once in a hundred times
    several = [{author(one, Random(seed)) for seed in range(seeds)} for one in asked[function]]
    assert any(len(found) > 1 for found in several) == (function not in DETERMINED)


def test_ratings_are_numbers_from_1_to_10(asked: dict[str, list[Request]]) -> None:
    for kind in ("event", "chat", "thought"):
        for answer in answers(asked[f"{kind}_poignancy"]):
            assert 1 <= int(answer.split(",")[0]) <= 10


@pytest.mark.parametrize("heading", ["Event", "Thought", "Conversation"])
def test_the_rating_follows_the_text(heading: str) -> None:
    def rated(text: str) -> list[int]:
        prompt = Prompt(f"Rate how poignant it is to marry.\n{heading}: {text}\nRating:")
        return [int(small.poignancy(prompt, Random(seed)).split(",")[0]) for seed in range(20)]

    bed, festival, quarrel, ring = map(
        rated, ("the bed is idle", "lantern festival", "Ada quarrelled with Bram", "a ring for Ada")
    )
    assert 1 <= min(bed) <= max(bed) < min(festival) <= max(festival) < min(quarrel)
    assert max(quarrel) <= min(ring) <= max(ring) <= 10


def test_places_are_of_the_list(asked: dict[str, list[Request]]) -> None:
    for function in ("action_sector", "action_arena", "action_game_object"):
        for request in asked[function]:
            line = next(text for text in request.text.split("\n") if text.startswith("Known "))
            options = line.partition(": ")[2].split(", ")
            for answer in answers([request]):
                assert answer in options
                assert planning.option_in(answer, options) == answer


@pytest.mark.parametrize(
    "task", ["pondering", "sleeping", "cooking", "writing a letter", "resting"]
)
@pytest.mark.parametrize(
    ("house", "rooms"),
    [
        ("Ash House", "room 1, kitchen, room 2"),
        ("Ash House", "bedroom of Bram, room 2, bathroom"),
        ("Ash House", "room 1, kitchen"),
        ("Elm House", "room 1, room 2, kitchen"),
        ("Elm House", "Bram's room, parents' bedroom, kitchen"),
    ],
)
def test_nobody_enters_the_bedroom_of_another(task: str, house: str, rooms: str) -> None:
    def chosen(rooms: str) -> set[str]:
        prompt = Prompt(
            "Home: Ash House, sleeps in the room 2\nAt 10:00, Ada is about to do this: "
            f"{task}\nIt is part of: {task}\nAda goes to {house}.\nKnown rooms: {rooms}\nWhich room"
        )
        return {small.arena(prompt, Random(seed)) for seed in range(30)}

    assert chosen(rooms) <= {"kitchen", *(["room 2"] if house == "Ash House" else [])}
    assert chosen("room 1, bathroom") == {"bathroom"}
    assert chosen("room 1") == {"room 1"}, "there is no other room"


HOUSE = "child's bedroom, bathroom, kitchen, living room, garden"


@pytest.mark.parametrize(
    ("task", "part", "place", "rooms", "fitting"),
    [
        ("washing the dishes", "having dinner", "Ash House", HOUSE, {"kitchen"}),
        ("cutting back the roses", "working in the garden", "Ash House", HOUSE, {"garden"}),
        ("playing a round of billiards", "the evening", "Inn", "kitchen, taproom", {"taproom"}),
        ("looking who is at the Inn", "having dinner", "Inn", "kitchen, taproom", {"taproom"}),
        ("chopping vegetables for soup", "working", "Inn", "taproom, kitchen", {"kitchen"}),
        ("choosing apples from the shelves", "shopping", "Shop", "pharmacy, grocery", {"grocery"}),
        ("looking something up at Ivy", "a class", "Ivy", "office, library, studio", {"library"}),
        ("writing a test at the office desk", "working", "Ivy", "library, office", {"office"}),
        ("reading a page", "shopping at the Market", "Ash House", HOUSE, {"living room"}),
        ("pondering", "shopping at the Market", "Ash House", HOUSE, {"kitchen", "living room"}),
    ],
)
def test_rooms_suit_the_task(
    task: str, part: str, place: str, rooms: str, fitting: set[str]
) -> None:
    prompt = Prompt(
        "Home: Ash House, sleeps in the child's bedroom\nAt 10:00, Ada is about to do this: "
        f"{task}\nIt is part of: {part}\nAda goes to {place}.\nKnown rooms: {rooms}\nWhich room"
    )
    assert {small.arena(prompt, Random(seed)) for seed in range(40)} == fitting


@pytest.mark.parametrize(
    ("task", "things", "fitting"),
    [
        ("resting on the sofa", "bench, sofa, table", {"sofa"}),
        ("eating breakfast", "billiard table, table, sofa", {"table"}),
        ("looking for a book on the shelves", "table, bookshelf, sofa", {"bookshelf"}),
        ("looking at the flower beds", "bed, flower bed, bench", {"flower bed"}),
        ("steaming milk for coffee", "chair, counter, sofa", {"counter"}),
        ("pondering", "billiard table, bench, stove", {"bench"}),
    ],
)
def test_objects_suit_the_task(task: str, things: str, fitting: set[str]) -> None:
    prompt = Prompt(
        f"At 10:00, Ada is about to do this: {task}\nIt is part of: a day\n"
        f"Known objects: {things}\nWhich object"
    )
    assert {small.thing(prompt, Random(seed)) for seed in range(40)} == fitting


def test_a_garden_is_worked_in_at_home() -> None:
    prompt = Prompt(
        "Home: Ash House, sleeps in the bedroom\nWorks at: Ivy College\n"
        "At 16:00, Ada is about to do this: cutting back the roses\n"
        "It is part of: working in the garden\nKnown places: Ivy College, Ash House\nWhich place"
    )
    assert small.sector(prompt, Random(0)) == "Ash House"
    for rooms, has_garden in (("kitchen, garden", True), ("kitchen", False)):
        prompt = Prompt(
            f"Home: Ash House, sleeps in the bedroom\nPlaces in town: Ash House ({rooms})"
            "\nDate: Wednesday, 15 February 2023, 00:00\n\n"
            "Schedule:\n[12:00-13:00] having lunch\n[17:00-18:00] Ada is"
        )
        free = {hourly_schedule(prompt, Random(seed)) for seed in range(80)}
        assert ("working in the garden" in free) == has_garden


def test_utterances_are_json(asked: dict[str, list[Request]]) -> None:
    for answer in answers(asked["iterative_convo"]):
        said = json.loads(answer)
        assert set(said) == {"utterance", "ends"}
        assert utterance_of(answer) == Utterance(said["utterance"], said["ends"])


def talk_from(request: Request, seed: int, *lines: str) -> list[str]:
    """A conversation that goes on after `lines`, both sides with the mind of the request's."""
    said, random = list(lines), Random(seed)
    before, _, question = request.text.partition("Conversation so far:\n")
    names = Prompt(request.text).name, question.partition("say next to ")[2].partition("?")[0]
    asks = question[question.index("\n\nWhat does") :]
    for _ in range(2 * LINES):
        so_far = "\n".join(f"{names[turn % 2]}: {text}" for turn, text in enumerate(said))
        answer = json.loads(
            say(Scene(Prompt(f"{before}Conversation so far:\n{so_far}{asks}")), random)
        )
        said.append(answer["utterance"])
        if answer["ends"]:
            break
    return said


def test_conversations_end_in_time(asked: dict[str, list[Request]]) -> None:
    requests = {Scene(Prompt(one.text)).other: one for one in asked["iterative_convo"]}
    lengths = [len(talk_from(one, seed)) for one in requests.values() for seed in range(20)]
    assert min(lengths) > SHORT_LINES.start
    assert max(lengths) <= UTTERANCES_MAX


def test_a_quarrel_ends_a_conversation(asked: dict[str, list[Request]]) -> None:
    for request in asked["iterative_convo"]:
        said = talk_from(request, 0, "Good morning.", "I am cross with you about the hedge.")
        assert len(said) == 5, "offence, a parting word, a farewell"


def test_insights_have_evidence(asked: dict[str, list[Request]]) -> None:
    for request in asked["insight_and_guidance"]:
        statements = len(re.findall(r"^\d+\. ", request.text, re.MULTILINE))
        for answer in answers([request]):
            found = [insight_of(line) for line in planning.lines_of(answer)]
            assert len({text for text, _ in found}) == 5
            for text, places in found:
                assert text
                assert "because" not in text
                assert len(set(places)) == 3
                assert set(places) <= set(range(statements))


@pytest.mark.parametrize(
    ("function", "asks_for"),
    [
        ("task_decomp", r"their times add up to (\d+) minutes"),
        ("new_decomp_schedule", r"does for the (\d+) minutes until"),
    ],
)
def test_tasks_fill_the_time(asked: dict[str, list[Request]], function: str, asks_for: str) -> None:
    for request in asked[function]:
        (minutes,) = map(int, re.findall(asks_for, request.text))
        for answer in answers([request]):
            tasks = planning.tasks_of(answer, 0, 100 * 3600, "nothing")
            assert all(task.what != "nothing" and "minutes" not in task.what for task in tasks)
            lengths = [*map(int, re.findall(r"\((\d+) minutes\)$", answer, re.MULTILINE))]
            assert len(lengths) == len(tasks)
            assert sum(lengths) == minutes
            assert min(5, minutes) <= min(lengths) <= max(lengths) < 25


@pytest.mark.parametrize("hour", [10, 18])
def test_a_revised_plan_keeps_its_tasks_unless_one_is_invited(hour: int) -> None:
    news = "News: There is a lantern festival on Mill Green on Monday the 13th at six, with soup."
    prompt = Prompt(
        f"Name: Ada Whitlock (age 34)\nOccupation: writer\nDate: Monday, 13 February 2023, "
        f"{hour}:20\n1. {news}\nThis is what Ada Whitlock had planned for this part of the day "
        f"(writing):\n[{hour}:10-{hour}:30] reading\n[{hour}:30-{hour}:50] writing a page\n\n"
        f"It is {hour}:20. Write what Ada does for the 40 minutes until {hour + 1}:00"
    )
    for seed in range(20):
        tasks = planning.tasks_of(new_decomp_schedule(prompt, Random(seed)), 0, 2400, "nothing")
        kept = [task.what for task in tasks][:2] == ["reading", "writing a page"]
        assert kept == (hour == 10)
        assert any("festival" in task.what or "lantern" in task.what for task in tasks) == (
            not kept
        )


timed = st.builds(
    "{} ({} minutes)".format, st.sampled_from(["walk", "", "x 1"]), st.integers(0, 200)
)
lines = st.lists(st.one_of(timed, st.text(max_size=40)), max_size=8).map("\n".join)


@given(lines, st.integers(0, DAY_S), st.integers(60, 7200))
def test_whatever_a_model_answers_is_a_plan(text: str, start_s: int, length_s: int) -> None:
    end_s = start_s + length_s
    tasks = planning.tasks_of(text, start_s, end_s, "resting")
    assert [tasks[0].start_s, tasks[-1].end_s] == [start_s, end_s]
    assert all(one.end_s == other.start_s for one, other in pairwise(tasks))
    assert all(task.start_s < task.end_s and task.what for task in tasks)


def test_models_number_bullet_and_quote() -> None:
    text = "1) walking (10 minutes)\n- resting, 5 min\n3. **Eating** [duration: 20 mins]\nreading"
    tasks = planning.tasks_of(text, 0, 6000, "nothing")
    assert [task.what for task in tasks][:2] == ["walking", "resting"]
    assert [(task.start_s, task.end_s) for task in tasks] == [
        (0, 600),
        (600, 900),
        (900, 2100),
        (2100, 6000),
    ]
    options = ["Lantern Café", "Heron Inn", "room 1", "room 10"]
    assert planning.option_in('"the Heron Inn."', options) == "Heron Inn"
    assert planning.option_in("I would choose room 10", options) == "room 10"
    assert planning.option_in("nowhere", options) is None
    assert utterance_of("Hello there!") == Utterance("Hello there!", False)
    assert insight_of("People talk.") == ("People talk.", [])


NUMBERS = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}


@given(st.integers(4, 10), st.integers(1, 12), st.sampled_from(["am", "pm"]), st.integers())
def test_one_gets_up_at_the_hour_of_one_s_habits(up: int, bed: int, half: str, seed: int) -> None:
    told = [f"goes to bed around {bed}{half}, awakes up around {up}am, eats dinner around 6pm"]
    told += [f"gets up at {past}{NUMBERS[up]}" for past in ("", "half past ") if up in NUMBERS]
    for habits in told:
        hour, minute = wake_up_hour(Prompt(f"Habits: {habits}, dines at five"), Random(seed)).split(
            ":"
        )
        late = 30 if "half past" in habits else 0
        assert -10 <= int(hour) * 60 + int(minute) - up * 60 - late <= 30


def test_residents_know_each_other_by_name() -> None:
    profiles = town_profiles()
    names = {profile.name for profile in profiles}
    for profile in profiles:
        assert set(profile.relations) <= names - {profile.name}
        assert all(name in text for name, text in profile.relations.items())
    places = make_scenario("smallville").agents[0].atlas.places
    for profile in profiles:
        assert "bed" in places[profile.home][profile.room]
        assert profile.at in places[profile.home][profile.room]["bed"]
        assert not profile.workplace or profile.workplace in places


def test_places_have_one_article() -> None:
    named = ("Heron Inn", "The Rose and Crown Pub", "Quarry Market")
    assert [the(place) for place in named] == ["the Heron Inn", *named[1:]]


def test_the_beginning_of_a_sentence_is_no_first_name() -> None:
    text = "Name: Ada Whitlock (age 34)\n1. For Isabella Rodriguez's planning: bring soup\n"
    assert "How do Ada Whitlock and Isabella Rodriguez stand" in talk.questions(
        Prompt(text), Random(0)
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            '{"utterance": "Yes, \\"tea\\" it is.", "ends": true}',
            Utterance('Yes, "tea" it is.', True),
        ),
        ('```json\n{"utterance": "Bye.", "ends": "true"}\n```', Utterance("Bye.", True)),
        ('{"utterance": "Well", "ends": "false"}', Utterance("Well", False)),
        ('{"utterance": "Perhaps I could', Utterance("Perhaps I could", False)),
        ('{"utterance": "Perhaps \\', Utterance("Perhaps", False)),
        ('{"utterance": "\\ud83d", "ends": false}', Utterance("?", False)),
        ('{"utterance": "\\ud83d\\ude00"}', Utterance("\U0001f600", False)),
        ('{"utterance": 3}', Utterance("", True)),
        ("```", Utterance("", True)),
        ("", Utterance("", True)),
        ("Hello there!", Utterance("Hello there!", False)),
    ],
)
def test_utterances_of_models_may_be_fenced_cut_or_empty(answer: str, said: Utterance) -> None:
    assert utterance_of(answer) == said
