"""A social network: distance is hops between acquaintances, and agents do not move.

People write posts, read, like and share the posts of people they follow, and follow or leave
acquaintances (AI Metropolis §6: a world without space).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from metropolis import Scenario, StepRecord
from metropolis.worlds.social.author import author
from metropolis.worlds.social.network import SocialNetwork, acquaintances
from metropolis.worlds.social.person import TOPICS, Person

PEOPLE = 50
FIRST = "Aki Bea Cem Dora Emil Fay Gil Hana Igor Jun Kaja Leo Mina Nils Olga Pia Raul Sina Tom Uma"
LAST = "Abel Brun Cole Dahl Egan Frey Gray Holm Iyer Jens Kerr Lund Moss Nash Oduya Park Quist Rao"


def make(*, agents: int | None = None, seed: int = 0) -> Scenario:
    """A network of `agents` people, drawn with `seed`; None: 50 people."""
    draw = Random(f"social/{seed}")
    names = _names(agents or PEOPLE, draw)
    people = [
        Person(
            name=name,
            interests=draw.sample(sorted(TOPICS), 2),
            talkative=round(draw.uniform(0.02, 0.15), 3),
            curious=round(draw.uniform(0.1, 0.5), 3),
        )
        for name in names
    ]
    world = SocialNetwork(names, acquaintances(len(names), draw))
    return Scenario(world, people, author, story, 72, ("react", "write"))


def story(record: StepRecord) -> Sequence[str]:
    """The posts, shares, follows and leaves of a step."""
    told = []
    for event in record.events:
        if event.kind == "posted":
            told.append(f"{event.source}: “{event['text']}”")
        elif event.kind == "shared":
            told.append(f"{event.source} shares what {event['writer']} wrote: “{event['text']}”")
        elif event.kind in ("follows", "leaves"):
            told.append(f"{event.source} {event.kind} {event['whom']}.")
    return told


def _names(count: int, draw: Random) -> list[str]:
    """Unique names; numbered once all pairs of first and last name are used."""
    pairs = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]
    draw.shuffle(pairs)
    again = [f"{pairs[i % len(pairs)]} {i // len(pairs) + 1}" for i in range(len(pairs), count)]
    return pairs[:count] + again
