"""The scripted author's stories: news with dates, other words for facts, quarrels, weather."""

from __future__ import annotations

from datetime import date, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.worlds.smallville import town_profiles
from metropolis.worlds.smallville.author import facts, quarrels
from metropolis.worlds.smallville.author.dates import day_in, over, spoken
from metropolis.worlds.smallville.author.lines import Scene, say
from metropolis.worlds.smallville.author.plans import revise_identity
from metropolis.worlds.smallville.author.prompt import Prompt
from metropolis.worlds.smallville.author.talk import decide_to_talk, memo
from metropolis.worlds.smallville.author.wording import pattern, worded
from metropolis.worlds.smallville.news import Spread, tells

ADA, BRAM = "Ada Whitlock", "Bram Okafor"
MONDAY = date(2023, 2, 13)
DATES = st.dates(date(2000, 1, 1), date(2100, 1, 1))


def talking(*memories: str, said: str = "", day: int = 13, hour: int = 10) -> Prompt:
    """A prompt in which Ada speaks next to Bram."""
    mind = "".join(f"{number}. {text}\n" for number, text in enumerate(memories, 1))
    return Prompt(
        f"Name: {ADA} (age 34)\nDate: {date(2023, 2, day):%A, %d %B %Y}, {hour}:00\n\n"
        f"What comes to {ADA}'s mind:\n{mind}Relation: they are neighbours\n"
        f"Setting: it is {hour}:00 at Willow Lodge: room 1; {ADA} was reading when meeting {BRAM},"
        f" who was cooking.\n\nConversation so far:\n{said or '(nothing has been said)'}\n\n"
        f"What does {ADA} say next to {BRAM}? Two sentences."
    )


def lines(prompt: Prompt) -> str:
    """What Ada may say, with any seed."""
    return "\n".join(say(Scene(prompt), Random(seed)) for seed in range(60))


def test_the_author_has_words_for_all_news_of_the_town() -> None:
    texts = Spread(town_profiles(), MONDAY).texts
    for mark, text in texts.items():
        wording = facts.wording_of(text)
        assert wording is not None
        assert wording.mark == mark
        prompt = talking(text)
        for seed in range(20):
            telling = facts.told(text, prompt, Random(seed))
            assert [own for own in texts if tells(telling, own)] == [mark], telling
            assert "{" not in telling
            assert day_in(telling, MONDAY) == day_in(text, MONDAY) or "{day}" not in str(wording)


def test_news_of_others_is_told_as_it_was_heard() -> None:
    assert facts.told("A bear is in the park.", talking(), Random(0)) == "A bear is in the park."


@given(DATES, st.integers(-13, 13))  # the shortest month has 28 days
def test_a_day_is_found_again_around_its_month(today: date, days: int) -> None:
    day = date.fromordinal(today.toordinal() + days)
    assert day_in(f"They meet on {spoken(day)} at six.", today) == day


@pytest.mark.parametrize(
    ("text", "now", "gone"),
    [
        ("on Monday the 13th at six", "2023-02-13T18:30", False),
        ("on Monday the 13th at six", "2023-02-13T19:00", True),
        ("on Monday the 13th at six", "2023-02-14T08:00", True),
        ("on Monday the 13th at six", "2023-02-12T23:00", False),
        ("at odds since Monday the 13th", "2023-02-15T08:00", False),
        ("at odds since Monday the 13th", "2023-02-16T08:00", True),
        ("a cat is missing", "2023-02-16T08:00", False),
    ],
)
def test_news_goes_stale(text: str, now: str, gone: bool) -> None:
    assert over(text, datetime.fromisoformat(now)) == gone


def test_stale_news_is_not_told() -> None:
    news = "News: There is a lantern festival on Mill Green on Monday the 13th at six, with soup."
    told = [tells(lines(talking(news, day=day)), "lantern festival, six") for day in range(11, 17)]
    assert any(told[:3])
    assert not any(told[3:])


@pytest.mark.parametrize(("day", "minded"), [(12, True), (13, True), (14, False)])
def test_stale_news_does_not_enter_the_plan(day: int, minded: bool) -> None:
    news = "News: There is a lantern festival on Mill Green on Monday the 13th at six, with soup."
    memories = talking(f"{ADA} is reading.", news, day=day).text.partition("Relation:")[0]
    notes = revise_identity(Prompt(f"{memories}What should {ADA} bear in mind?"), Random(0))
    assert ("lantern festival" in notes) == minded


def test_an_invitation_holds_on_its_day_and_hour() -> None:
    news = "News: There is a lantern festival on Mill Green on Monday the 13th at six, with soup."
    assert facts.invitation(talking(news), 19) == "at the lantern festival on Mill Green"
    assert not facts.invitation(talking(news), 14)
    assert not facts.invitation(talking(news, day=14), 19)


def test_a_quarrel_is_remembered_and_made_up_on_another_day() -> None:
    about = "the hedge"
    memory = quarrels.memory_of(ADA, BRAM, about, MONDAY)
    cross = f"{BRAM}: To be frank, Ada, I am cross with you about {about}."
    closing = f"Name: {ADA} (age 34)\nDate: Monday, 13 February 2023, 10:00\n"
    closing += f"Conversation between {ADA} and {BRAM}:\n{{said}}\n\nIn one sentence"
    assert memo(Prompt(closing.replace("{said}", cross)), Random(0)) == memory
    assert "about the hedge the other day" not in lines(talking(memory))
    sorry = lines(talking(memory, day=14))
    assert quarrels.SORRY.search(sorry)
    peace = quarrels.memory_of_peace(ADA, BRAM, about, date(2023, 2, 14))
    said = f"{ADA}: I have thought about {about} the other day: I was too quick, Bram."
    text = closing.replace("{said}", said).replace("13", "14").replace("Monday", "Tuesday")
    assert memo(Prompt(text), Random(0)) == peace
    assert not quarrels.open_quarrels([memory, peace], ADA, MONDAY)


def test_one_avoids_whom_one_quarrelled_with_for_a_day() -> None:
    memory = quarrels.memory_of(ADA, BRAM, "the hedge", MONDAY)

    def share(*memories: str, day: int) -> float:
        text = talking(*memories, day=day).text.partition("Setting:")[0]
        prompt = Prompt(f"{text}\nIt is 10:00. {ADA} is up, and sees {BRAM}, who is cooking.")
        return sum(decide_to_talk(prompt, Random(seed)) == "yes" for seed in range(300)) / 300

    assert share(memory, day=13) < 0.1 < share(day=13) < share(memory, day=14)


@given(st.integers(0, 1000))
def test_choices_are_made_and_recognised(seed: int) -> None:
    text = "[Good|Fine] morning, {other}[, again|]. Is it (not) [so|true]?"
    words = worded(text, Random(seed)).replace("{other}", "Bram")
    assert "[" not in words
    assert pattern(text).fullmatch(words)
    assert not pattern(text).search("Bad morning, Bram. Is it (not) so?")


def test_nobody_speaks_of_the_bathroom_or_of_being_asleep() -> None:
    seen = [f"Celia Marsh is {what}" for what in ("brushing teeth", "sleeping", "kneading dough")]
    said = lines(talking(*seen, said=f"{BRAM}: You may well be right."))
    assert "Celia kneading dough" in said or "Celia, kneading dough" in said
    assert "teeth" not in said
    assert "sleeping" not in said
    own = talking()
    assert "reading" in lines(own)
    assert "shower" not in lines(Prompt(own.text.replace("was reading", "was taking a shower")))


def test_a_goal_of_a_day_ends_with_it() -> None:
    asked = "What is Ada after at present? One sentence.\nAnswer:"
    notes = "Note: Ada should bear in mind: tea\n"

    def goals(goal: str) -> set[str]:
        prompt = Prompt(
            f"Name: {ADA} (age 34)\nOccupation: novelist\nPresent goal: {goal}\n"
            f"Likes to talk about: tea (“hot”)\n\n{ADA} remembers:\n{notes}\n{asked}"
        )
        return {revise_identity(prompt, Random(seed)) for seed in range(40)}

    lasting, tonight = "Ada wants to finish her novel.", "Ada wants to sing tonight."
    assert lasting in goals(lasting)
    assert tonight not in goals(tonight)
    assert not any("bear in mind" in goal for goal in goals(lasting) | goals(tonight))
