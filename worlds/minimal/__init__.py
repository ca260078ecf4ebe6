"""A village green, where a rumour grows as it is passed on."""

from dataclasses import dataclass
from random import Random
from typing import Any

from gymnasium.spaces import Dict, Discrete, Sequence

from metropolis import Agent, Choice, Entity, FreeText, Scenario, Transaction, View, World

EDGE = 16  # the largest x and y of a tile; the smallest is 0
WALKS = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


@dataclass
class Green(World):
    """Villagers see and hear 4 tiles far, and walk one tile a step."""

    names: list[str]
    name = "minimal"
    perception_radius = 4
    max_velocity = 1
    joint_radius = 0
    observation_space = Dict(near=Discrete(10_000), heard=Sequence(FreeText()))
    action_space = Dict(walk=Choice(WALKS), say=FreeText())

    def reset(self, *, seed: int, options: Any) -> list[Entity]:
        draw = Random(seed).randrange
        return [Entity(name, (draw(EDGE), draw(EDGE)), "agent") for name in self.names]

    def observe(self, view: View) -> Any:
        return {"near": len(view.agents()), "heard": tuple(e["words"] for e in view.events())}

    def resolve(self, cluster: Transaction) -> None:
        for villager in cluster:
            if villager.action["say"]:
                villager.emit("says", words=villager.action["say"])
            x, y = villager.position
            dx, dy = villager.action["walk"]
            villager.move((min(max(x + dx, 0), EDGE), min(max(y + dy, 0), EDGE)))


@dataclass
class Villager(Agent):
    """Remembers the last rumour it heard, and passes it on now and then."""

    name: str
    rumour: str = ""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if observation["heard"]:
            self.rumour = observation["heard"][-1]
        say = ""
        if self.rumour and observation["near"] and self.random.random() < 0.1:
            question = f"Pass this rumour on, a little better than you heard it: {self.rumour}"
            say = (await llm.chat(question, function="gossip", max_tokens=60)).text
        return {"walk": self.random.choice(WALKS), "say": say}


def author(request: Any, random: Random) -> str:
    """Answers in place of a model: more geese are lost."""
    geese = int(request.text.split()[-2]) + random.randint(1, 3)
    return f"The miller has lost {geese} geese"


def make(*, agents: int | None = None, seed: int = 0) -> Scenario:
    """A green with `agents` villagers (default: 10), one of whom knows a rumour."""
    villagers = [Villager(f"Villager {i + 1}") for i in range(agents or 10)]
    villagers[seed % len(villagers)].rumour = "The miller has lost 2 geese"
    green = Green([villager.name for villager in villagers])
    return Scenario(green, villagers, author, steps=120)
