"""Workplaces of imported people, from the sentences that describe them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.worlds.smallville.genagent.workplaces import Places

ARENAS = (
    "",
    "The Thistles Market and Pharmacy: store",
    "Dobbs Cafe: cafe",
    "Elm Ridge College: library",
    "Elm Ridge College: classroom",
    "Dorm for Elm Ridge College: Ann Ash's room",
    "Dorm for Elm Ridge College: common room",
    "Finch Supply Store: sales room",
    "The Fox and Hound Pub: pub",
    "Ash Park: park",
    "Birch house: bedroom",
)
DORM, HOUSE = "Dorm for Elm Ridge College", "Birch house"
MARKET, COLLEGE = "The Thistles Market and Pharmacy", "Elm Ridge College"
PLACES = Places(ARENAS, {DORM, HOUSE})


def workplace(*texts: str, home: str = DORM) -> tuple[str, str, str]:
    fields = dict(zip(("learned", "daily_plan_req", "currently"), texts, strict=False))
    return PLACES.workplace("Ann Ash", fields, home, ["Ben Birch", "Cy Cole"])


@pytest.mark.parametrize(
    ("sentence", "sector", "arena"),
    [
        ("Ann Ash is a shop keeper at the Thistle Market and Pharmacy who likes tea.", MARKET, ""),
        ("Ann runs the Thistle Market.", MARKET, ""),
        ("Ann works behind the counter of the pharmacy.", MARKET, ""),
        ("Ann opens DOBBS CAFÉ at 8am, and closes it at 6pm.", "Dobbs Cafe", ""),
        ("Ann works at Dobbs's.", "Dobbs Cafe", ""),
        ("Ann goes to the library at Elm Ridge college to study.", COLLEGE, "library"),
        ("1. Wake up at 6 am 2. Attend classes at the library from 10 am", COLLEGE, "library"),
        ("Ann studies at the college every day.", COLLEGE, ""),
        ("Ann is in 10th grade at Elm Ridge College.", COLLEGE, ""),
        ("Ann is the owner of the Fox & Hound.", "The Fox and Hound Pub", ""),
        ("Ann is a gardener at the Birch house.", HOUSE, ""),
    ],
)
def test_loose_names_are_found(sentence: str, sector: str, arena: str) -> None:
    assert workplace(sentence) == (sector, arena, "learned")


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "Ann Ash is a college student who likes the market.",
        "Ann works at the store.",
        "Ann works at Dobbs Cafe and at the Fox and Hound Pub.",
        "Ann works at the Dorm for Elm Ridge College.",
        "Ann works in the common room.",
        "Ann works at Elsewhere Hall.",
        "Ann is a retired teacher who has worked at Elm Ridge College.",
        "Ann is a former teacher at Elm Ridge College.",
        "Ann visits Dobbs Cafe for studying.",
        "Ann likes to go to Dobbs Cafe to eat and study.",
        "Ann goes for a run at Ash Park, and has lunch at Dobbs Cafe.",
        "Ann lives with her husband, who is a shop keeper at Dobbs Cafe.",
        "Ann helps Ben, who works at Dobbs Cafe.",
        "Ann is planning a party at Dobbs Cafe.",
    ],
)
def test_nothing_is_guessed(sentence: str) -> None:
    assert workplace(sentence) == ("", "", "")


@pytest.mark.parametrize(
    ("text", "sector"),
    [
        ("Ann是榆树学院的学生。她常去狐狸酒吧。", "榆树学院"),
        ("Ann在狐狸酒吧和榆树学院工作。", ""),
        ("Ann住在桦树之家。", ""),
        ("Ann is a student at 榆树学院.", "榆树学院"),
    ],
)
def test_names_in_texts_without_spaces(text: str, sector: str) -> None:
    arenas = ("", "榆树学院: 图书馆", "狐狸酒吧: 酒吧", "桦树之家: 房间")
    found = Places(arenas, {"桦树之家"}).workplace("Ann", {"learned": text}, "桦树之家", [])
    assert (found.sector, found.field) == (sector, "learned" if sector else "")


def test_the_first_field_with_a_place_counts() -> None:
    pub, cafe = "Ann works at the pub.", "Ann works at the cafe."
    assert workplace("Ann is kind.", pub, cafe)[::2] == ("The Fox and Hound Pub", "daily_plan_req")
    assert workplace("Ann is kind.", "", cafe)[::2] == ("Dobbs Cafe", "currently")
    assert workplace("Ann is a retired cook.", pub, cafe) == ("", "", "")


WORDS = st.sampled_from(["Ann", "works", "at", "the", "of", "1.", ",", "who", "Dobbs", "Dorm"])


@given(st.text() | st.lists(WORDS).map(" ".join))
def test_any_text_gives_a_place_of_the_map_that_is_not_the_home(text: str) -> None:
    sector, _, field = workplace(text, text, text)
    assert (sector == "") == (field == "")
    assert sector != DORM
    assert sector in {"", *(name.partition(": ")[0] for name in ARENAS)}
