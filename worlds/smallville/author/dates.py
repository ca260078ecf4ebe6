"""Days and times in texts: `on Monday the 13th at half past five`."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

_DAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day the (\d+)(?:st|nd|rd|th)\b")
_TIME = re.compile(r"\bat (half past )?(three|four|five|six|seven|eight|nine|ten|noon)\b")
_HOURS = {"ten": 10, "noon": 12, "three": 15, "four": 16, "five": 17, "six": 18, "seven": 19}
_HOURS |= {"eight": 20, "nine": 21}
_NEAR_DAYS, _FRESH_DAYS = 15, 2


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

    What has been so since a day is news for two more.
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
