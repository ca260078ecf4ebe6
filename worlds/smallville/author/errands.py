"""Errands: short tasks away from the place of a plan.

A model that is asked for the place of each task sends residents about. In three recorded runs of
Generative Agents (10 agents, 46 hours each) 47 to 49 % of the activities between 9 and 19 o'clock
begin in another sector than those before them, 30 % before 9, 40 % from 19 and 27 % from 21
o'clock; from nine to five residents are at home for a third of the time, elsewhere for a sixth.
"""

from __future__ import annotations

import re
from random import Random

from metropolis.worlds.smallville.author.prompt import Prompt, match, phrases, pick

_LEAVING = ((9, 0.25), (19, 0.5), (21, 0.4), (24, 0.2))
"""Until which hour, and the probability that the next task is an errand."""
_RETURNING = 0.45
"""Probability that the plan goes on after a task of an errand."""
_HOME_SHARE = 2 / 3
_UNBROKEN = re.compile(r"getting |waking |tidying |reading in bed|at the [a-z]")
"""Plans that are carried out without a break: the ends of the day, and invitations."""
_PLACE = re.compile(r"(?:^|; )([^;(]+) \(([^)]*)\)")


class Errands:
    """The errands during the plan `what`."""

    def __init__(self, what: str, prompt: Prompt) -> None:
        unbroken = _UNBROKEN.match(what)
        leaving = next(share for until, share in _LEAVING if prompt.hour < until)
        self._leaving = 0.0 if unbroken else leaving
        home, work = prompt.fact("Home").partition(",")[0], prompt.fact("Works at")
        is_work = re.search(r"\bwork|\bclass|\bstudying", what) is not None
        stays = {place for place in (work, home) if place in what} or {work if is_work else home}
        at_home = bool({home, "home"} & stays) and not re.search(r" (?:at|on|in|of) .*[A-Z]", what)
        self._home = [] if at_home or not home else [(home, phrases()["errands_home"])]
        self._elsewhere = [
            (the(place), words)
            for place, rooms in _PLACE.findall(prompt.fact("Places in town"))
            if place not in (home, work)
            and place not in what
            and (words := match("errands", rooms))
        ]
        self._at: tuple[str, list[str]] | None = None

    def next(self, random: Random) -> str:
        """The next errand; empty: the plan goes on."""
        if not (self._home or self._elsewhere):
            return ""
        if self._at is not None:
            if random.random() < _RETURNING:
                self._at = None
        elif random.random() < self._leaving:
            places = self._home if random.random() < _HOME_SHARE else self._elsewhere
            places = places or self._elsewhere
            self._at = pick(places, random) if places else None
        return "" if self._at is None else pick(self._at[1], random).format(place=self._at[0])


def the(place: str) -> str:
    """A place's name, with its article where English has one."""
    wants = re.match(r"(?!The ).*(?:Café|Cafe|Inn|Pub|Bar|Club)$", place)
    return f"the {place}" if wants else place
