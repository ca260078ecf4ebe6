"""The laws of the network: perception and the effects of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from gymnasium import spaces

from metropolis import Appearance, Entity, FreeText, Transaction, View, World
from metropolis.rules.metrics import Hops

POSTS_KEPT = 4
"""Number of posts on a page."""
FRIENDS, REWIRED = 6, 0.1
"""Degree and rewiring probability of a small world (Watts and Strogatz 1998)."""

_NAME, _TEXT = FreeText(60), FreeText(600)
_POST = spaces.Dict(id=_NAME, writer=_NAME, sharer=_NAME, topic=_NAME, text=_TEXT)


class SocialNetwork(World):
    """Every agent is at a node of a graph of acquaintances, and sees the neighbours' pages.

    Shared posts spread from page to page; a writer learns of the likes of acquaintances.

    Agents write only their own pages, so they never have to act together: each person waits only
    for acquaintances that lag behind.
    """

    name, perception_radius, max_velocity, joint_radius = "social", 1, 0, 0
    step_s, start = 600.0, datetime(2023, 2, 13, 8)
    appearance = Appearance(speech={"posted": "text", "shared": "text"})
    observation_space = spaces.Dict(
        feed=spaces.Sequence(_POST),
        likes=spaces.Discrete(100_000),
        follows=spaces.Sequence(_NAME),
        acquaintances=spaces.Sequence(_NAME),
    )
    action_space = spaces.Dict(
        post=spaces.Dict(topic=_NAME, text=_TEXT), like=_NAME, share=_NAME, follow=_NAME
    )
    """Empty texts mean no action; `follow` names a person to follow, or to leave if followed."""

    def __init__(self, names: Sequence[str], graph: Sequence[Sequence[int]]) -> None:
        self.names, self.graph = list(names), Hops(graph)
        self.metric = self.graph

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        """Every agent follows two thirds of its acquaintances."""
        draw = Random(f"social/{seed}")
        people = []
        for node, name in enumerate(self.names):
            known = [self.names[other] for other in self.graph.neighbours[node]]
            follows = draw.sample(known, (2 * len(known) + 2) // 3)
            page = {"follows": sorted(follows), "posts": [], "posted": 0, "liked": [], "likes": 0}
            people.append(Entity(name, (node, 0), "agent", page))
        return people

    def observe(self, view: View) -> Any:
        """The agent's feed, oldest first; likes of its posts; whom it follows and knows."""
        pages = view.agents()
        feed = [
            {key: post[key] for key in _POST} | {"sharer": page.name}
            for page in pages
            if page.name in view.me["follows"]
            for post in page["posts"]
            if post["writer"] != view.name
        ]
        return {
            "feed": tuple(sorted(feed, key=lambda post: (post["id"], post["sharer"]))),
            "likes": view.me["likes"],
            "follows": tuple(view.me["follows"]),
            "acquaintances": tuple(page.name for page in pages),
        }

    def resolve(self, cluster: Transaction) -> None:
        """Update each agent's own page."""
        for person in cluster:
            page = {**person.me.state}
            act = person.action
            page["likes"] += sum(liked["writer"] == person.name for liked in person.events("liked"))
            seen = {
                post["id"]: post
                for other in person.agents()
                if other.name in page["follows"]
                for post in other["posts"]
            }
            if act["post"]["text"]:
                self._post(person, page, act["post"])
            if act["like"] in seen and act["like"] not in page["liked"]:
                page["liked"] = [*page["liked"], act["like"]][-POSTS_KEPT:]
                person.emit("liked", writer=seen[act["like"]]["writer"], id=act["like"])
            if act["share"] in seen and act["share"] not in [post["id"] for post in page["posts"]]:
                shared = seen[act["share"]]
                page["posts"] = [*page["posts"], shared][-POSTS_KEPT:]
                person.emit("shared", writer=shared["writer"], text=shared["text"])
            if act["follow"] in [other.name for other in person.agents()]:
                self._toggle(person, page, act["follow"])
            person.write(**page)

    def _post(self, person: Any, page: dict[str, Any], written: Mapping[str, str]) -> None:
        page["posted"] += 1
        number = f"{person.step:05}/{person.name}"
        post = {"id": number, "writer": person.name, "sharer": person.name, **written}
        page["posts"] = [*page["posts"], post][-POSTS_KEPT:]
        person.emit("posted", **written)

    def _toggle(self, person: Any, page: dict[str, Any], whom: str) -> None:
        leaves = whom in page["follows"]
        others = {*page["follows"]} ^ {whom}
        page["follows"] = sorted(others)
        person.emit("leaves" if leaves else "follows", whom=whom)


def acquaintances(count: int, draw: Random) -> tuple[tuple[int, ...], ...]:
    """A small world: a ring of ties to the nearest nodes, a tenth of which are rewired."""
    known: list[set[int]] = [set() for _ in range(count)]
    for node in range(count):
        for ahead in range(1, min(FRIENDS, count - 1) // 2 + 1):
            other = (node + ahead) % count
            if draw.random() < REWIRED:
                strangers = [i for i in range(count) if i != node and i not in known[node]]
                other = draw.choice(strangers) if strangers else other
            known[node].add(other)
            known[other].add(node)
    return tuple(tuple(sorted(of - {node})) for node, of in enumerate(known))
