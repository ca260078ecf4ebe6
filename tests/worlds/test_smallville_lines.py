"""Every line that the scripted author may say is recognised, and as no other line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date
from itertools import product
from random import Random

import pytest

from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.author import facts, small, talk
from metropolis.worlds.smallville.author.lines import Scene, say, talk_phrases
from metropolis.worlds.smallville.author.prompt import HERALDS, Prompt
from metropolis.worlds.smallville.author.wording import occurs, pattern
from metropolis.worlds.smallville.news import Spread

ADA, BRAM = "Ada Whitlock", "Bram Okafor"
VALUES = {
    "other": "Ada",
    "who": "Celia",
    "what": "drying plates, and putting them away",
    "doing": "reading on, one chapter more",
    "plan": "walk round Mill Green in the afternoon, if nothing comes in between",
    "topic": "the light on Mill Green in the afternoon",
    "topic_start": "The light on Mill Green in the afternoon",
    "matter": "what was said at the market",
    "day": "Monday the 13th",
}
TALK = talk_phrases()
PROFILES = town_profiles()
FACTS = [
    wording
    for text in Spread(PROFILES, date(2023, 2, 13)).texts.values()
    if (wording := facts.wording_of(text))
]
ANSWERS = {
    "closings": "farewells",
    "parting": "farewells",
    "quarrels": "offence",
    "peace": "forgiving",
    "seen": "about_people",
    "works": "about_work",
    "plans": "about_plans",
    "topics": "interest",
}
"""Table of lines -> the table of their answers."""
OPENINGS = [
    *((text, TALK[answers]) for lines, answers in ANSWERS.items() for text in TALK[lines]),
    *((pair["say"], pair["replies"]) for pair in TALK["pairs"]),
    *((f"{HERALDS[0]} {text}", fact.reactions) for fact in FACTS for text in fact.tellings),
]
"""(line, the answers to it)."""
FIRST = [
    *(text for table in sorted(set(ANSWERS.values()) - {"farewells"}) for text in TALK[table]),
    *(text for table in ("surprise", "agreement", "asides") for text in TALK[table]),
    *(text for table in TALK["greetings"].values() for text in table),
    *(text for _, answers in OPENINGS for text in answers if text not in TALK["farewells"]),
]
"""Lines before an opening in the same utterance: greetings and answers."""
REMARKS = [
    *TALK["more_of_topics"],
    *(remark for one in PROFILES for remark in one.topics.values()),
]


def every(text: str) -> Iterator[str]:
    """All wordings of a line, with words in place of names."""
    parts = re.split(r"\[([^]]*)\]", text)
    options = [part.split("|") if place % 2 else [part] for place, part in enumerate(parts)]
    for chosen in product(*options):
        yield re.sub(r"\{(\w+)\}", lambda found: VALUES[found[1]], "".join(chosen))


def answer(line: str) -> str:
    """What Ada says after a line of Bram's."""
    prompt = Prompt(
        f"Name: {ADA} (age 34)\nDate: Monday, 13 February 2023, 10:00\n"
        f"Setting: it is 10:00 at Willow Lodge: room 1; {ADA} was reading when meeting {BRAM},"
        f" who was cooking.\n\nConversation so far:\n{BRAM}: Hello, Ada.\n{ADA}: Good to see you.\n"
        f"{BRAM}: {line}\n\nWhat does {ADA} say next to {BRAM}? Two sentences."
    )
    said: str = json.loads(say(Scene(prompt), Random(0)))["utterance"]
    return said


def test_every_wording_of_a_line_is_found() -> None:
    for text in (*FIRST, *REMARKS, *TALK["farewells"], *(text for text, _ in OPENINGS)):
        for line in every(text):
            assert pattern(text).fullmatch(line), line
            assert occurs(text, f"Good morning. {line} And so on."), line


def test_every_opening_gets_its_answer() -> None:
    for text, answers in OPENINGS:
        for line in every(text):
            said = answer(f"You may well be right. {line}")
            assert any(pattern(one).match(said) for one in answers), f"{line} -- {said}"


def test_no_answer_is_taken_for_an_opening() -> None:
    opening = next(every(TALK["works"][0]))
    for line in (line for text in FIRST for line in every(text)):
        said = answer(f"{line} {opening}")
        assert any(pattern(one).match(said) for one in TALK["about_work"]), f"{line} -- {said}"


def test_no_remark_on_a_topic_is_taken_for_an_opening() -> None:
    opening = next(every(TALK["topics"][0]))
    for line in (line for text in REMARKS for line in every(text)):
        said = answer(f"{opening} {line}")
        assert any(pattern(one).match(said) for one in TALK["interest"]), f"{line} -- {said}"


@pytest.mark.parametrize("text", TALK["topics"])
def test_a_topic_is_what_a_conversation_was_about(text: str) -> None:
    (line,) = every(text)
    prompt = Prompt(
        f"Name: {ADA} (age 34)\n\nConversation between {ADA} and {BRAM}:\n"
        f"{BRAM}: Hello, Ada. {line} It has been so since October.\n\nIn one sentence"
    )
    assert talk.summary(prompt, Random(0)) == VALUES["topic"]
    assert VALUES["topic"] in talk.memo(prompt, Random(0)).removesuffix(".").split(" about ")


@pytest.mark.parametrize(
    ("sentence", "subject"),
    [
        (f"{ADA} is reading on, one chapter more", ADA),
        (f"{ADA} and {BRAM} are conversing about salt, and pepper", f"{ADA} and {BRAM}"),
        (f"{ADA} heard news from {BRAM}: On Monday the 13th, as ever, there is soup.", ADA),
        ("Wim de Groot should bring back a book", "Wim de Groot"),
        (f"{ADA} should keep in mind what {BRAM} and Ada spoke of: The cat is missing.", ADA),
    ],
)
def test_a_sentence_has_the_subject_that_it_begins_with(sentence: str, subject: str) -> None:
    parts = small.triple(Prompt(f"x\nSentence: {sentence}\n("), Random(0)).split(", ")
    assert len(parts) == 3
    assert parts[0] == subject


def test_people_of_all_names_are_asked_about() -> None:
    prompt = Prompt(f"Name: {ADA} (age 34)\n1. Wim de Groot is counting stock\n")
    assert f"How do {ADA} and Wim de Groot stand" in talk.questions(prompt, Random(0))


SECRET = "The piano that one hears at night is played by a teacher of mathematics."
RETOLD = "It is a teacher of mathematics who plays the piano at night."


@pytest.mark.parametrize(
    ("memories", "leaks"),
    [
        ([f"Secret: {SECRET}"], [SECRET]),
        ([f"{ADA} heard in confidence from Celia Voss: {RETOLD}"], [RETOLD]),
        ([f"{ADA} let slip to Celia Voss: {RETOLD}"], [RETOLD]),
        ([f"Secret: {SECRET}", f"{ADA} let slip to {BRAM}: {RETOLD}"], []),
        ([f"{ADA} heard in confidence from {BRAM}: {RETOLD}"], []),
        ([f"Secret: {BRAM} plays the piano; he teaches mathematics."], []),
        ([f"News: {SECRET}"], []),
    ],
)
def test_a_secret_is_told_to_those_who_are_not_known_to_have_it(
    memories: list[str], leaks: list[str]
) -> None:
    numbered = "\n".join(f"{i}. {memory}" for i, memory in enumerate(memories, 1))
    text = (
        f"Name: {ADA} (age 34)\nDate: Monday, 13 February 2023, 10:00\nKnows: {BRAM}\n"
        f"{numbered}\n\nConversation so far:\n\n\nWhat does {ADA} say next to {BRAM}?"
    )
    assert Scene(Prompt(text)).leaks == leaks
    assert Scene(Prompt(text.replace("Knows: ", "Has met: "))).leaks == []


def opened(plan: str, hour: int, *said: str) -> str:
    """All that Ada may say at an hour about her plan and her topics, after some lines."""
    before = "".join(f"{ADA}: {line}\n{BRAM}: You may be right.\n" for line in said)
    prompt = Prompt(
        f"Name: {ADA} (age 34)\nPlan for the day: {plan}\nLikes to talk about: tea (“It is hot.”)\n"
        f"Date: Monday, 13 February 2023, {hour}:00\n"
        f"Setting: it is {hour}:00 at Willow Lodge: room 1; {ADA} was waiting when meeting {BRAM},"
        f" who was cooking.\n\nConversation so far:\n{before or f'{BRAM}: Hello, Ada.'}\n\n"
        f"What does {ADA} say next to {BRAM}? Two sentences."
    )
    return " ".join(say(Scene(prompt), Random(seed)) for seed in range(200))


@pytest.mark.parametrize(
    ("plan", "said", "hour"),
    [
        ("has breakfast with Kaya", "have breakfast with Kaya", 10),
        ("opens the Lantern Café at eight", "open the Lantern Café at eight", 12),
        ("has lunch on a bench", "have lunch on a bench", 15),
        ("takes a nap after lunch", "take a nap after lunch", 16),
        ("works at the Lantern Café from eight to four", "work at the Lantern Café", 17),
        ("is in bed by half past nine if nothing comes in between", "be in bed by half past", 21),
        ("go to bed at half past ten", "go to bed at half past ten", 22),
        ("does her homework after dinner", "do my homework after dinner", 24),
        ("studies maps", "study maps", 24),
    ],
)
def test_a_plan_is_told_until_its_time_has_passed(plan: str, said: str, hour: int) -> None:
    assert said in opened(plan, hour - 1)
    assert hour == 24 or said not in opened(plan, hour)


def test_lines_are_not_repeated() -> None:
    plan, topic = (next(every(TALK[kind][0])) for kind in ("plans", "topics"))
    topic = topic.replace(VALUES["topic"], "tea")
    text = opened("walks; reads; sings", 9, plan, topic)
    assert "My list for today says," not in text
    assert "I still mean to" in text
    assert topic not in text
    assert "tea today" in text


def test_nobody_talks_in_the_shower() -> None:
    for mine, theirs in (("taking a shower", "reading"), ("reading", "taking a shower")):
        prompt = Prompt(
            f"Name: {ADA} (age 34)\nDate: Monday, 13 February 2023, 07:00\nIt is 07:00. {ADA} is"
            f" {mine}, and sees {BRAM}, who is {theirs}. The two have not talked yet.\n"
            f"Would {ADA} like to talk with {BRAM} now?"
        )
        assert {talk.decide_to_talk(prompt, Random(seed)) for seed in range(60)} == {"no"}
