"""How prompts introduce a resident: as briefly as the question allows.

The published code of Park et al. (2023) begins most prompts with an *identity stable set* of name,
age, traits, background, habits, present goal and plan, and shorter ones with the name alone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from metropolis.worlds.smallville.state import clock, day_of

if TYPE_CHECKING:
    from metropolis.worlds.smallville.resident import Resident

INTENTIONS = 4
"""Maximum number of conclusions of today's conversations in a prompt."""


def whole(me: Resident, now_s: int) -> str:
    """All facts: for planning, and for what the resident says."""
    profile = me.profile
    lines = [f"Knows: {' '.join(profile.relations.values())}"]
    if me.day.intentions:
        lines.append(f"From today's conversations: {' '.join(me.day.intentions[-INTENTIONS:])}")
    return f"{person(me)}{places(me)}{topics(me)}{_joined(lines)}{_date(me, now_s)}"


def person(me: Resident, now_s: int | None = None) -> str:
    """The identity stable set: for judgements."""
    profile = me.profile
    lines = [
        f"Name: {profile.name} (age {profile.age})",
        f"Traits: {profile.traits}",
        f"Occupation: {profile.occupation}",
        f"Background: {profile.background}",
        f"Habits: {profile.habits}",
        f"Present goal: {me.goal}",
    ]
    if me.day.outline:
        lines.append(f"Plan for the day: {'; '.join(me.day.outline)}")
    return _joined(lines) + _date(me, now_s)


def named(me: Resident, now_s: int | None = None) -> str:
    """The name and the occupation: for questions whose facts the prompt lists."""
    profile = me.profile
    lines = [f"Name: {profile.name} (age {profile.age})", f"Occupation: {profile.occupation}"]
    return _joined(lines) + _date(me, now_s)


def places(me: Resident) -> str:
    """Home and workplace: for the choice of a place."""
    profile = me.profile
    home = f"Home: {profile.home}, sleeps in the {profile.room}"
    return _joined([home, f"Works at: {profile.workplace or 'home'}"])


def topics(me: Resident) -> str:
    """The favourite topics, with a remark about each."""
    told = (f"{topic} (“{remark}”)" for topic, remark in me.profile.topics.items())
    return f"Likes to talk about: {'; '.join(told)}\n"


def date_of(me: Resident, now_s: int) -> str:
    """The day and the time, as Monday, 13 February 2023, 06:00."""
    day = me.first_day + timedelta(days=day_of(now_s))
    return f"{day:%A, %d %B %Y}, {clock(now_s)}"


def day_name(me: Resident, now_s: int) -> str:
    """The day, as Monday, 13 February."""
    return f"{me.first_day + timedelta(days=day_of(now_s)):%A, %d %B}"


def _date(me: Resident, now_s: int | None) -> str:
    return "" if now_s is None else f"Date: {date_of(me, now_s)}\n"


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
