"""Worlds pass the conformance tests of Gymnasium and PettingZoo, and tell lockstep's history."""

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

import metropolis
from metropolis import (
    Agent,
    Choice,
    Entity,
    MetropolisError,
    Simulation,
    SingleAgentWorld,
    Transaction,
    View,
    World,
    make_scenario,
    parallel_env,
)
from metropolis.adapters.registration import IDS
from metropolis.maps.map import GridMap
from metropolis.world.scenario import scenario_names

INSTALLED = {
    name: world
    for name, world in IDS.items()
    if world in scenario_names() and find_spec(f"metropolis.worlds.{world}")
}


class Pond(World):
    """Frogs hop along a line, hold hands with neighbours who answer, and are glad to be east."""

    name, perception_radius, max_velocity = "pond", 3, 1
    observation_space = spaces.Dict(
        place=spaces.Box(0, 9, (2,), np.float64), others=spaces.Sequence(Choice(["ann", "bob"]))
    )
    action_space = spaces.Discrete(3, start=-1)
    map = GridMap(
        "pond",
        np.array([[False] * 10, [True] * 10]),
        np.zeros((2, 10), np.int32),
        ("",),
        np.zeros((2, 10), np.int32),
        ("",),
    )

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        self.options = dict(options)
        return [Entity("ann", (seed % 5, 0), "agent"), Entity("bob", (4, 0), "agent")]

    def observe(self, view: View) -> Any:
        others = tuple(body.name for body in view.agents())
        return {"place": np.array(view.position), "others": others}

    async def resolve(self, cluster: Transaction) -> None:
        for frog in cluster:
            x = min(max(frog.position[0] + frog.action, 0), 9)
            frog.move((x, 0))
            for other in cluster:
                if other is not frog:
                    frog.write(answer=await frog.ask(other.name, "hello?"))

    def reward(self, view: View) -> float:
        return view.position[0]


@dataclass
class Frog(Agent):
    name: str
    hops: int = 0

    def proceed(self, observation: Any, llm: Any) -> Any:
        self.hops += 1
        return self.random.choice([-1, 0, 1])

    def answer(self, question: Any, llm: Any) -> Any:
        return f"{self.name} after {self.hops} hops"


def everything() -> dict[str, Any]:
    return {"pond": Pond(), **{world: world for world in INSTALLED.values()}}


@pytest.mark.parametrize("name", everything())
def test_pettingzoo_accepts_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(everything()[name]), num_cycles=30)
        parallel_seed_test(lambda: parallel_env(everything()[name]), num_cycles=5)


@pytest.mark.parametrize("name", everything())
@pytest.mark.filterwarnings("ignore:.*Not able to test alternative render modes")
def test_gymnasium_accepts_it(name: str) -> None:
    made = SingleAgentWorld(everything()[name], render_mode="ansi")
    check_env(made)
    made.close()


@pytest.mark.parametrize("name", INSTALLED)
def test_gymnasium_makes_it_by_name(name: str) -> None:
    made = gymnasium.make(name)
    check_env(made.unwrapped)
    made.close()
    again = gymnasium.make("metropolis/World-v0", world=INSTALLED[name])
    assert again.observation_space == made.observation_space


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, metropolis",
        "import metropolis, gymnasium",
        "import gymnasium",
        "import metropolis; from importlib.util import find_spec; find_spec('gymnasium'); "
        "import gymnasium",
    ],
)
def test_importing_is_enough_in_either_order(imports: str) -> None:
    prefix = "" if "metropolis" in imports else "metropolis:"
    code = f"{imports}; print(gymnasium.make('{prefix}metropolis/Minimal-v0').unwrapped.agent)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.strip() == "Villager 1", output.stderr


def test_metropolis_does_without_gymnasium_imported() -> None:
    code = "import metropolis, metropolis.types, sys; print('gymnasium' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout.strip() == "False", output.stderr


def test_recorded_actions_from_outside_lead_to_the_same_history() -> None:
    """An environment that is given the actions of a run has the same entities after each step."""
    scenario = make_scenario("minimal", agents=12)
    run = Simulation(scenario.world, scenario.agents, seed=3, mode="lockstep").run(40)
    outside = parallel_env("minimal", agents=12)
    outside.reset(seed=3)
    for record in run.history:
        outside.step(dict(record.actions))
    places = {entity.name: entity for entity in outside._running_episode().entities()}
    assert places == dict(run.history[-1].writes)


def test_one_agent_from_outside_is_one_of_the_run() -> None:
    """The others of a single agent's world are the scenario's own, with their offline author."""
    scenario = make_scenario("minimal", agents=12)
    from metropolis import Client
    from metropolis.llm.backends.scripted import Scripted

    client = Client(Scripted(scenario.author))
    run = Simulation(scenario.world, scenario.agents, client, seed=3, mode="lockstep").run(40)
    made = SingleAgentWorld("minimal", agents=12, agent="Villager 5")
    for _ in range(2):  # a second episode begins with agents that know nothing of the first
        made.reset(seed=3)
        for record in run.history:
            made.step(record.actions["Villager 5"])
        places = {entity.name: entity for entity in made._running_episode().entities()}
        assert places == dict(run.history[-1].writes)
    made.close()


def test_others_may_follow_a_policy_or_be_agents() -> None:
    def east(name: str, observation: Any) -> int:
        assert (name, observation["others"]) == ("bob", ("ann",))
        return 1

    made = SingleAgentWorld(Pond(), others=east)
    made.reset(seed=2)
    observation, reward, *_ = made.step(1)
    assert (list(observation["place"]), reward) == ([3, 0], 3)
    assert [e.position for e in made._running_episode().entities()] == [(3, 0), (5, 0)]

    bob = Frog("bob")
    made = SingleAgentWorld(Pond(), others=[bob])
    made.reset(seed=3)
    made.step(0)
    ann, _ = made._running_episode().entities()
    assert ann["answer"] == "bob after 1 hops"
    assert bob.hops == 0, "the agent given is copied"


def test_episodes_end_after_their_cycles() -> None:
    both = parallel_env(Pond(), max_cycles=2)
    both.reset(seed=0)
    assert both.step({"ann": 1, "bob": 0})[3] == {"ann": False, "bob": False}
    observations, rewards, ended, truncated, _ = both.step({"ann": 1, "bob": 0})
    assert (rewards, ended["ann"], truncated) == (
        {"ann": 2, "bob": 4},
        False,
        {"ann": True, "bob": True},
    )
    assert (list(observations), both.agents) == (["ann", "bob"], [])
    one = SingleAgentWorld(Pond(), max_cycles=2)
    one.reset(seed=0)
    assert [one.step(0)[2:4], one.step(0)[2:4]] == [(False, False), (False, True)]


def test_seed_and_options_reach_the_world() -> None:
    pond = Pond()
    both = parallel_env(pond)
    first, _ = both.reset(seed=3, options={"depth": 2})
    assert (list(first["ann"]["place"]), pond.options) == ([3, 0], {"depth": 2})
    places = [list(both.reset()[0]["ann"]["place"]) for _ in range(12)]
    both.reset(seed=3)
    assert [list(both.reset()[0]["ann"]["place"]) for _ in range(12)] == places
    assert len({tuple(place) for place in places}) > 1, "unseeded episodes differ"


def test_it_shows_where_everybody_is() -> None:
    both = parallel_env(Pond(), render_mode="ansi")
    both.reset(seed=1)
    assert both.render() == ".a..b.....\n##########\nann at (1, 0)\nbob at (4, 0)"
    assert parallel_env(Pond()).render() is None


def test_agents_off_the_map_are_listed_only() -> None:
    class Wide(Pond):
        def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
            return [Entity("ann", (10, 0), "agent"), Entity("bob", (4, -1), "agent")]

    both = parallel_env(Wide(), render_mode="ansi")
    both.reset(seed=1)
    assert both.render() == "..........\n##########\nann at (10, 0)\nbob at (4, -1)"


def test_it_works_where_an_event_loop_runs_already() -> None:
    async def notebook() -> Any:
        made = SingleAgentWorld(Pond())
        made.reset(seed=0)
        reward = made.step(1)[1]
        made.close()
        return reward

    assert asyncio.run(notebook()) == 1


class Bare(Pond):
    action_space = None  # type: ignore[assignment]


class Moody(Pond):
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(f"ann {seed}", (0, 0), "agent")]


def test_refusals() -> None:
    def refused(sentence: str, act: Any, *given: Any, **more: Any) -> None:
        with pytest.raises(MetropolisError) as refusal:
            act(*given, **more)
        assert str(refusal.value) == sentence

    both = parallel_env(Pond())
    refused("the world 'pond' is not reset; call reset first", both.step, {"ann": 0, "bob": 0})
    both.reset(seed=0)
    refused("step 0: there is no action for 'bob'", both.step, {"ann": 0})
    refused(
        "step 0, agent 'bob': the action is 7, which is not in the space Discrete(3, start=-1)",
        both.step,
        {"ann": 0, "bob": 7},
    )
    refused(
        "the world 'pond' has no action_space; it should be a gymnasium.Space", parallel_env, Bare()
    )
    refused(
        "the world 'pond' has other agents for the seed 1 than before; World.reset should return "
        "the same bodies for every seed",
        parallel_env(Moody()).reset,
        seed=1,
    )
    refused(
        "the world 'pond' has no agent 'cleo'; there are ann, bob",
        SingleAgentWorld,
        Pond(),
        agent="cleo",
    )
    refused(
        "the others do not match the world's bodies at 'bob'; there should be an agent for every "
        "body but 'ann'",
        SingleAgentWorld(Pond(), others=[]).reset,
    )


@pytest.mark.parametrize("make", [parallel_env, SingleAgentWorld])
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_cycles": 0}, "max_cycles is 0; it should be a whole number, at least 1"),
        ({"max_cycles": "9"}, "max_cycles is '9'; it should be a whole number, at least 1"),
        ({"render_mode": "human"}, "there is no render mode 'human'; there are ansi"),
        ({"scenario_seed": -1}, "scenario_seed is -1; it should be a whole number from 0 to"),
        ({"agents": 3}, "agents is 3, but only a world given by its name is made with a number"),
        ({"world": "minimal", "agents": 0}, "agents is 0; it should be a whole number, at least"),
        ({"world": 3}, "the world is 3; it should be a metropolis.World"),
    ],
)
def test_what_an_environment_is_made_of_is_checked(make: Any, given: Any, sentence: str) -> None:
    with pytest.raises(MetropolisError) as refusal:
        make(**({"world": Pond()} | given))
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize("make", [parallel_env, SingleAgentWorld])
def test_seeds_and_options_of_an_episode_are_checked(make: Any) -> None:
    made = make(Pond(), max_cycles=np.int64(5))
    for seed in (-1, "x", True, 2**63):
        with pytest.raises(MetropolisError, match=r"seed is .*; it should be a whole number from"):
            made.reset(seed=seed)
    with pytest.raises(MetropolisError, match="options is 3; it should be a dictionary, or None"):
        made.reset(options=3)
    made.reset(seed=np.int64(3))


def test_agents_that_the_world_lacks_are_told() -> None:
    both = parallel_env(Pond())
    both.reset(seed=0)
    for act in (
        lambda: both.action_space("cleo"),
        lambda: both.observation_space("cleo"),
        lambda: both.step({"ann": 0, "bob": 0, "cleo": 0}),
    ):
        with pytest.raises(MetropolisError, match="the world 'pond' has no agent 'cleo'; there ar"):
            act()


def test_others_are_a_function_to_the_action_space_or_agents() -> None:
    with pytest.raises(MetropolisError, match="others is 3; it should be a function"):
        SingleAgentWorld(Pond(), others=3)  # type: ignore[arg-type]
    with pytest.raises(MetropolisError, match=r"agents\[0\] is 3; it should be a metropolis.Agent"):
        SingleAgentWorld(Pond(), others=[3])  # type: ignore[list-item]
    made = SingleAgentWorld(Pond(), others=lambda agent, observation: 7)
    made.reset(seed=0)
    sentence = "agent 'bob': the action that others returned is 7, which is not in the space Disc"
    with pytest.raises(MetropolisError, match=sentence):
        made.step(0)


def test_a_world_may_be_given_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "meadow.py"
    file.write_text("from metropolis.worlds.minimal import make as make\n")
    assert len(parallel_env(file, agents=3).possible_agents) == 3
    assert SingleAgentWorld(file, agents=3).agent == "Villager 1"


def test_a_world_keeps_nothing_while_it_is_driven() -> None:
    class Leaky(Pond):
        async def resolve(self, cluster: Transaction) -> None:
            self.count = 1

    both = parallel_env(Leaky())
    both.reset(seed=0)
    with pytest.raises(metropolis.CausalityError, match="the world's attribute 'count' was set"):
        both.step({"ann": 0, "bob": 0})
