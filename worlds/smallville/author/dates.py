"""Days and times in texts: `on Monday the 13th at half past five`."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

_DAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day the (\d+)(?:st|nd|rd|th)\b")
_TIME = re.compile(r"\bat (half past )?(three|four|five|six|seven|eight|nine|ten|noon)\b")
_HOURS = {"ten": 10, "noon": 12, "three": 15, "four": 16, "five": 17, "six": 18, "seven": 19}
_HOURS |= {"eight": 20, "nine": 21}
_NEAR_DAYS, _FRESH_DAYS = 15, 2


_ENDS = (
    (r"breakfast|children off", 10),
    (r"until noon|at noon|in the morning|opens .* at", 12),
    (r"until one|class", 14),
    (r"(?<!after )lunch|until two", 15),
    (r"after lunch|until three|after school", 16),
    (r"to four|until four", 17),
    (r"afternoon|(?:at|until) five", 18),
    (r"to seven", 20),
    (r"to nine|bed by half past nine", 21),
    (r"at ten in the evening|bed (?:at|by) (?:half past )?ten", 22),
)
"""Words of a day's plan, and the hour from which they are of the past."""


def ends(item: str) -> int:
    """The hour from which an item of a day's plan is past; 24: it names no earlier one."""
    return next((hour for words, hour in _ENDS if re.search(rf"\b(?:{words})\b", item)), 24)


def spoken(day: date) -> str:
    """`Monday the 13th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day // 10 != 1 else 0, "th")
    return f"{day:%A} the {day.day}{ending}"


def day_in(text: str, today: date) -> date | None:
    """The day that `text` names, the one nearest to `today`; None: it names none."""
    found = _DAY.search(text)
    if found is None:
        return None
    ways = sorted(range(-_NEAR_DAYS, _NEAR_DAYS + 1), key=abs)
    near = (today + timedelta(days=days) for days in ways)
    return next((day for day in near if day.day == int(found[1])), None)


def over(text: str, now: datetime) -> bool:
    """Whether the day that `text` names has passed, or the time that it names on this day.

    A text with `since` and a day has passed more than two days after it.
    """
    day = day_in(text, now.date())
    if day is not None and f"since {spoken(day)}" in text:
        return (now.date() - day).days > _FRESH_DAYS
    if day is None or day > now.date():
        return False
    if day < now.date():
        return True
    time = _TIME.search(text)
    return time is not None and now.hour > _HOURS[time[2]]
