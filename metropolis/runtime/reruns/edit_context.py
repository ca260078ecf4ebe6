"""A simulation between two steps, as an edit sees and changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isasyncgen, iscoroutine, isgenerator
from typing import TypeVar

import msgspec

from metropolis.names import cut
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.live.setup import bodies, check_entities, check_free_names
from metropolis.types import MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity, Event
from metropolis.world.saved_check import check_names
from metropolis.world.saving import copies_of, restore, save

SHOWN_NAMES = 8
T = TypeVar("T")


@dataclass(slots=True)
class Moment:
    """The state that an edit may change, except positions of bodies and the set of agents.

    Entities are frozen: `moment.entities[name] = replace(entity, state={**entity.state, …})`.
    """

    step: Step
    entities: dict[str, Entity]
    """Name -> entity, as `step` sees it; bodies included."""
    events: list[Event]
    """The events that `step` perceives: those of the previous step."""
    agents: dict[str, Agent]
    """Name -> agent, with its mind."""


class _ByName(dict[str, T]):
    def __missing__(self, name: str) -> T:
        more = ", …" if len(self) > SHOWN_NAMES else ""
        raise KeyError(f"there is no {name!r}; there are {', '.join([*self][:SHOWN_NAMES])}{more}")


Edit = Callable[[Moment], object]


def edited(
    checkpoint: Checkpoint, world: World, agents: Sequence[Agent], edit: Edit, seed: int
) -> tuple[Checkpoint, tuple[str, ...]]:
    """The checkpoint after `edit`, and the names whose mind, state or events it changed.

    Raises MetropolisError if the edited state is no valid start of a run.
    """
    people = {agent.name: agent for agent in copies_of(agents)}
    for name, agent in people.items():
        restore(agent, checkpoint.agents[name])
        agent.begin_step(seed, checkpoint.step)
    minds = {name: msgspec.json.encode(save(agent)) for name, agent in people.items()}
    before = {entity.name: entity for entity in checkpoint.entities}
    events = list(checkpoint.events)
    moment = Moment(checkpoint.step, _ByName(before), events, _ByName(people))
    returned = edit(moment)
    if iscoroutine(returned) or isgenerator(returned) or isasyncgen(returned):
        if not isasyncgen(returned):
            returned.close()
        raise MetropolisError("the edit is an async function or a generator; use a plain function")
    _check(moment, checkpoint.step)
    _check_agents(moment.agents, people)
    _check_entities(moment.entities, list(people), checkpoint, world)
    saved, now = {name: save(agent) for name, agent in people.items()}, moment.entities
    names = {name for name in people if minds[name] != msgspec.json.encode(saved[name])}
    names |= {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    for one, other in ((moment.events, checkpoint.events), (checkpoint.events, moment.events)):
        names |= {event.source for event in one if event not in other}
    for name, agent in people.items():
        try:
            restore(agent, saved[name])
        except MetropolisError as error:
            raise MetropolisError(
                f"the edit leaves a state that cannot be restored: {error}"
            ) from error
    content = replace(
        checkpoint,
        entities=[now[name] for name in sorted(now)],
        events=moment.events,
        agents=saved,
    )
    return content, tuple(sorted(names))


def _check(moment: Moment, step: Step) -> None:
    """Check the fields of the moment, and its events."""
    for name, kind in (("entities", dict), ("events", list), ("agents", dict)):
        if not isinstance(found := getattr(moment, name), kind):
            raise MetropolisError(
                f"the edit has replaced moment.{name} by {cut(found)}; it should stay a "
                f"{kind.__name__}, of which an edit changes the items"
            )
    if moment.step != step:
        raise MetropolisError(
            f"the edit has replaced moment.step, {step}, by {cut(moment.step)}; a branch begins "
            "where --at says"
        )
    for event in moment.events:
        if not isinstance(event, Event) or event.step != step - 1:
            raise MetropolisError(
                f"the edit has left the event {cut(event)}; step {step} perceives Events of step "
                f"{step - 1}"
            )


def _check_agents(agents: Mapping[str, Agent], people: Mapping[str, Agent]) -> None:
    """Check that `agents` are those that the edit was given, `people`, with their names."""
    if {name: id(agent) for name, agent in agents.items()} != {
        name: id(agent) for name, agent in people.items()
    }:
        raise MetropolisError(
            "the edit has replaced, added or removed an agent; it should change the agents' fields"
        )
    for name, agent in people.items():
        if agent.name != name:
            raise MetropolisError(
                f"the edit renames the agent {name!r} to {cut(agent.name)}; agents keep their names"
            )
        check_names(agent)


def _check_entities(
    edited_entities: Mapping[str, Entity],
    names: Sequence[str],
    checkpoint: Checkpoint,
    world: World,
) -> None:
    """Check that the agents `names` can go on from the checkpoint with these entities."""
    for name, entity in edited_entities.items():
        if not isinstance(entity, Entity) or entity.name != name:
            raise MetropolisError(
                f"the edit has replaced the entity {name!r} by {cut(entity)}; it should be an "
                "Entity of that name"
            )
    entities = list(edited_entities.values())
    check_entities(world, entities, names)
    known = {entity.name for entity in checkpoint.entities}
    check_free_names("the edit adds", (one for one in entities if one.name not in known), names)
    before, after = bodies(checkpoint.entities, names), bodies(entities, names)
    for name, was, now in zip(names, before, after, strict=True):
        if was != now:
            raise MetropolisError(
                f"the edit has moved {name!r} from {was} to {now}; only steps move agents: change "
                "where it wants to go"
            )
