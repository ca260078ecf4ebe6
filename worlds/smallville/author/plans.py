"""Plans: the time of waking up, the day, its hours, its tasks."""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author.dates import over
from metropolis.worlds.smallville.author.errands import Errands, the
from metropolis.worlds.smallville.author.facts import invitation, name_in, news_in
from metropolis.worlds.smallville.author.prompt import Prompt, match, numbered, phrases, pick
from metropolis.worlds.smallville.author.weather import INDOORS, weather
from metropolis.worlds.smallville.author.wording import filled

_NUMBERS = ("five", "six", "seven", "eight", "nine", "ten")
_MINUTES = (5, 5, 10, 10, 10, 15, 15, 20)
_FESTIVAL = re.compile(r"lantern festival", re.IGNORECASE)
ASLEEP_SHARE = 0.2
"""Probability of sleep from eleven at night, beside the habits that say so: together a third.

On five evenings of recorded runs of Generative Agents, residents sleep for 20, 38, 44, 60 and 0 %
of the hour before midnight."""
GOAL_KEPT_SHARE = 0.3
"""Probability that a goal lasts another day."""
_OF_A_DAY = re.compile(
    r"festival|parade|lantern|stage|tonight|by six|this afternoon|end of the day|hundred people"
)
"""Goals of the first day, which are over."""


def wake_up_hour(prompt: Prompt, random: Random) -> str:
    """The time in the habits, with a random variation."""
    habits = prompt.fact("Habits").lower()
    hour, minute = 7, 0
    if found := re.search(r"gets up at (half past )?(\w+)", habits):
        hour = 5 + _NUMBERS.index(found[2]) if found[2] in _NUMBERS else 7
        minute = 30 if found[1] else 0
    elif found := re.search(r"wakes up [^,]*?(\d+) ?am", habits):
        hour = int(found[1])
    minutes = hour * 60 + minute + int(random.random() * 9) * 5 - 10
    return f"{minutes // 60}:{minutes % 60:02d}"


def daily_plan(prompt: Prompt, random: Random) -> str:
    """The habits, one a line, with today's goal among them."""
    habits = prompt.fact("Habits").split(", ")[1:]
    goal = prompt.fact("Present goal").rstrip(".")
    lines = [f"{habit}{pick(phrases()['plan_tails'], random)}" for habit in habits]
    lines.insert(len(lines) // 2, f"find time for what matters today: {goal}")
    lines.append(f"go to bed at {pick(['ten', 'half past ten', 'eleven'], random)}")
    return "\n".join([f" {lines[0]}", *(f"- {line}" for line in lines[1:])])


def revise_identity(prompt: Prompt, random: Random) -> str:
    """Notes for planning, feelings about yesterday, or the goal."""
    name, goal = prompt.first_name, prompt.fact("Present goal")
    asked = prompt.text.rpartition("\n\n")[2]
    if "plan for the day" in asked:
        return daily_plan(prompt, random)
    if "bear in mind" in asked:
        news = [one.text for one in news_in(prompt.statements).values()]
        told = [text for text in news if not over(text, prompt.now)][:2] or prompt.statements[:1]
        return f"{name} should bear in mind: {' '.join(told)} {goal}"
    if "look back at yesterday" in asked:
        return pick(phrases()["yesterday"], random)
    kept = random.random() < GOAL_KEPT_SHARE and not _OF_A_DAY.search(goal)
    return goal if kept else _new_goal(prompt, random)


def _new_goal(prompt: Prompt, random: Random) -> str:
    """A goal of a later day, from the people and topics in the prompt."""
    people = [name for text in prompt.statements if (name := name_in(text)) != prompt.name and name]
    values = {
        "{me}": prompt.first_name,
        "{other}": pick(people or ["the neighbours"], random),
        "{topic}": pick(list(prompt.topics) or ["the town"], random),
        "{work}": prompt.fact("Occupation"),
    }
    return f"{filled(pick(phrases()['goals'], random), values)}."


def hourly_schedule(prompt: Prompt, random: Random) -> str:
    """An activity chosen by the time of day, the work, and known news."""
    hour = int(prompt.text[prompt.text.rfind("[") + 1 :][:2])
    workplace = prompt.fact("Works at")
    start, end = phrases()["shifts"].get(workplace, phrases()["shifts"]["other"])
    schedule = prompt.between("Schedule:\n", f"\n[{hour:02d}:")
    last = schedule.rpartition("] ")[2]
    if hour >= 23:
        early = "in bed by" in prompt.fact("Habits") or random.random() < ASLEEP_SHARE
        return "sleeping" if early else pick(phrases()["nights"], random)
    if last == "sleeping":
        return pick(phrases()["mornings"], random)
    if hour < 9 and "breakfast" not in schedule and hour < max(start, 8):
        return "having breakfast"
    lunch = 14 if start < 12 and workplace in phrases()["late_lunch"] else 12
    late = hour == lunch + 1 and "lunch" not in schedule
    if hour >= 12 and (late or (hour == lunch and random.random() < 0.9)):
        return f"having lunch {_lunch_place(prompt, random)}"
    if start <= hour < end:
        return _work(prompt, hour, workplace)
    if invited := invitation(prompt, hour):
        return invited
    if hour < end or hour < 18:
        return last if random.random() < 0.3 and hour > 13 else pick(_free_hours(prompt), random)
    if "dinner" not in schedule:
        return "having dinner"
    if hour == 22:
        return pick(phrases()["nights"], random)
    return last if "dinner" not in last and random.random() < 0.5 else _evening(prompt, random)


def task_decomp(prompt: Prompt, random: Random) -> str:
    """The tasks of the activity, in order."""
    what = prompt.between(f"{prompt.name} is ", ". Break")
    minutes = int(re.findall(r"\((\d+) minutes\)", prompt.text)[0])
    what = invitation(prompt, prompt.hour) or what
    return _list(_tasks(what, prompt, random), minutes, random, Errands(what, prompt))


def new_decomp_schedule(prompt: Prompt, random: Random) -> str:
    """The planned tasks, shortened; something to which the resident is invited at its time."""
    minutes = int(re.findall(r"for the (\d+) minutes", prompt.text)[0])
    planned = re.findall(r"^\[[^\]]*\] (.+)$", prompt.text, re.MULTILINE)
    if invited := invitation(prompt, prompt.hour):
        planned = _tasks(invited, prompt, random)
    return _list(planned or [prompt.between("part of the day (", "):")], minutes, random)


def _list(tasks: list[str], minutes: int, random: Random, errands: Errands | None = None) -> str:
    """Tasks, with errands in between, and with times that fill the minutes."""
    lines: list[str] = []
    turn = 0
    while minutes > 0 and len(lines) < 60:
        length = min(minutes, pick(_MINUTES, random))
        if minutes - length < 5:
            length = minutes
        errand = errands.next(random) if errands and lines else ""
        lines.append(f"{errand or tasks[turn % len(tasks)]} ({length} minutes)")
        minutes -= length
        turn += not errand
    return numbered(lines)


def _tasks(what: str, prompt: Prompt, random: Random) -> list[str]:
    occupation = prompt.fact("Occupation").lower()
    found: list[str] = list(match("tasks", f"{what} as {occupation}") or ())
    if not found:
        return [what, *(f"{what}, {tail}" for tail in phrases()["task_tails"])]
    start = 0 if "having" in what or "getting" in what else int(random.random() * len(found))
    return found[start:] + found[:start]


def _work(prompt: Prompt, hour: int, workplace: str) -> str:
    occupation = prompt.fact("Occupation")
    if workplace == "home":
        return f"working at home as a {occupation}"
    pupil = re.match(r"pupil|student", occupation)
    if pupil:
        return f"studying in {workplace}" if hour >= 13 else f"in class at {workplace}"
    return f"working at {the(workplace)}"


def _lunch_place(prompt: Prompt, random: Random) -> str:
    habits = prompt.fact("Habits")
    found = re.search(r"lunch[^,]* ((?:at|on) (?:the )?[A-Z][\w' é]+)", habits)
    if found and random.random() < 0.7:
        return found[1].strip()
    return pick(phrases()["lunch_places"], random)


def _free_hours(prompt: Prompt) -> list[str]:
    """Activities for an afternoon; the preparation of the festival if it is the goal."""
    goal = prompt.fact("Present goal")
    if _FESTIVAL.search(goal) and not over(goal, prompt.now):
        return ["preparing the lantern festival on Mill Green"]
    hours: list[str] = list(phrases()["free_hours"])
    home = prompt.fact("Home").partition(",")[0]
    if not re.search(rf"{re.escape(home)} \([^)]*garden", prompt.fact("Places in town")):
        hours.remove("working in the garden")
    if weather(prompt.now.date()) in INDOORS:
        hours = [text for text in hours if "Green" not in text and "garden" not in text]
    return hours


def _evening(prompt: Prompt, random: Random) -> str:
    habits = prompt.fact("Habits").lower()
    if "heron inn" in habits and random.random() < 0.7:
        return "spending the evening at the Heron Inn"
    return pick(phrases()["evenings"], random)
