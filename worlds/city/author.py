"""SmallVille's author, for residents who know more than one town."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from metropolis.llm.base import Request
from metropolis.worlds.city.people import Places, visits
from metropolis.worlds.city.terrain import TOWNS, parts
from metropolis.worlds.largeville.people import Renaming
from metropolis.worlds.smallville.author import author
from metropolis.worlds.smallville.author.prompt import Prompt, phrases

VISIT, STAY = 0.3, 0.7
"""Probability that a free hour begins a visit to a friend in another town, and that it goes on."""
VISIT_HOURS = range(13, 21)
_AT_WORK = re.compile(r"working|studying|in class|having lunch")
_VISITING = "visiting "
_PLACES = re.compile(r"^(?:Home|Places in town): .*\n", re.MULTILINE)


class CityAuthor:
    """Answers as SmallVille's author, with this town's people and places."""

    def __init__(self, towns: Sequence[Renaming], size: int) -> None:
        """`size` is the number of residents of a town."""
        self._towns, self._size = towns, size

    def __call__(self, request: Request, random: Random) -> str:
        """Answer a request in the format of its function."""
        number = request.agent // self._size
        workplace, work_town = parts(Prompt(request.text).fact("Works at"))
        hourly = request.function == "hourly_schedule"
        if hourly and workplace:  # the author knows the hours of Alderbrook's workplaces
            bare = request.text.replace(f"Works at: {workplace} of {work_town}\n", "")
            text = bare.replace("Home: ", f"Works at: {workplace}\nHome: ", 1)
            answer = author(replace(request, messages=None, prompt=text), random)
        elif work_town and request.function == "task_decomp":
            # No errands: home may be in another town.
            text = _PLACES.sub("", request.text)
            answer = author(replace(request, messages=None, prompt=text), random)
        else:
            answer = author(request, random)
        if hourly:
            answer = _visit(Prompt(request.text), answer, random)
        town = work_town if work_town and _AT_WORK.match(answer) else TOWNS[number]
        return Places(town, workplace, work_town).text(self._towns[number].text(answer))


def _visit(prompt: Prompt, answer: str, random: Random) -> str:
    """`answer`, or a visit in its place if it is a pastime."""
    marks = prompt.text[prompt.text.rfind("[") + 1 :]
    hour = int(marks[:2])
    last = prompt.between("Schedule:\n", f"\n[{hour:02d}:").rpartition("] ")[2]
    pastimes = (*phrases()["free_hours"], *phrases()["evenings"], last)
    if hour not in VISIT_HOURS or answer not in pastimes or answer.startswith("work"):
        return answer
    if last.startswith(_VISITING):
        return last if random.random() < STAY else answer
    friends = visits(prompt.fact("Knows"))
    if not friends or random.random() >= VISIT:
        return answer
    name, home = random.choice(friends)
    return f"{_VISITING}{name} at {home}"
