"""A world without space: posts spread along ties, and out of order pays."""

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from metropolis import Client, Scenario, Simulation, make_scenario
from metropolis.cli import cli
from metropolis.llm.backends.scripted import Scripted
from metropolis.rules.metrics import Hops
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace
from metropolis.world.record import StepRecord
from metropolis.worlds.social import make
from metropolis.worlds.social.network import FRIENDS, acquaintances

PROFILE = "llama-3-8b/l4"


def run(
    scenario: Scenario, steps: int, seed: int = 0, instances: int = 0, **options: str
) -> RunResult:
    llm = Scripted(scenario.author)
    client = Client(
        VirtualInstances(llm, SimulatedFleet.uniform(PROFILE, instances)) if instances else llm
    )
    simulation = Simulation(scenario.world, scenario.agents, client, seed=seed, **options)
    return simulation.run(steps)


@pytest.fixture(scope="module")
def day() -> tuple[Scenario, RunResult]:
    scenario = make_scenario("social")
    return scenario, run(scenario, scenario.steps)


def events(history: list[StepRecord], kind: str) -> list:
    return [event for record in history for event in record.events if event.kind == kind]


def test_people_post_like_share_and_follow(day: tuple[Scenario, RunResult]) -> None:
    scenario, result = day
    for kind in ("posted", "liked", "shared", "follows", "leaves"):
        assert len(events(result.history, kind)) > 5, kind
    assert set(result.usage) == {"write", "react"}
    told = [line for record in result.history for line in scenario.story(record)]
    assert any("shares what" in line for line in told)
    pages = {name: page for record in result.history for name, page in record.writes.items()}
    liked = events(result.history, "liked")
    node = {name: i for i, name in enumerate(scenario.world.names)}
    assert sum(page["likes"] for page in pages.values()) == sum(
        event.step < scenario.steps - 1
        and node[event["writer"]] in scenario.world.graph.neighbours[node[event.source]]
        for event in liked
    ), "a like by an acquaintance reaches the writer's page a step later"
    assert not any(event.source == event["writer"] for event in liked)


def test_nothing_reaches_further_than_acquaintances(day: tuple[Scenario, RunResult]) -> None:
    """Whoever shares a post has it from somebody they know, who had it before."""
    scenario, result = day
    graph, node = scenario.world.graph, {name: i for i, name in enumerate(scenario.world.names)}
    holders: dict[str, set[str]] = {}
    for record in result.history:
        for event in record.events:
            if event.kind == "shared":
                near = holders[event["text"] + event["writer"]]
                hops = [(node[name], node[event.source]) for name in near]
                assert any(graph.perceives((a, 0), (b, 0), 1) for a, b in hops)
        for event in record.events:
            if event.kind in ("posted", "shared"):
                writer = event["writer"] if event.kind == "shared" else event.source
                holders.setdefault(event["text"] + writer, set()).add(event.source)


@pytest.mark.parametrize("seed", range(2))
def test_every_mode_tells_the_same_story(seed: int) -> None:
    ways = [
        {"mode": "lockstep"},
        {"mode": "out_of_order", "rule": "versioned"},
        {"mode": "out_of_order", "rule": "conservative"},
    ]
    runs = [run(make(agents=40, seed=seed), 30, seed, instances=2, **way) for way in ways]
    assert len({result.history_sha256 for result in runs}) == 1


def test_out_of_order_pays() -> None:
    lockstep, ahead = (
        run(make(agents=60), 40, instances=2, mode=mode) for mode in ("lockstep", "out_of_order")
    )
    assert lockstep.calls == ahead.calls
    assert ahead.makespan_s < 0.8 * lockstep.makespan_s


def test_its_trace_replays_as_it_ran(tmp_path: Path) -> None:
    scenario = make(agents=30)
    llm = Client(VirtualInstances(Scripted(scenario.author), SimulatedFleet.uniform(PROFILE, 2)))
    live = Simulation(scenario.world, scenario.agents, llm, out=tmp_path / "run").run(30)
    trace = read_trace(tmp_path / "run" / "trace.parquet")
    assert trace.meta.graph == scenario.world.graph.neighbours
    assert (trace.meta.max_velocity, trace.meta.joint_radius) == (0, 0)
    setting = Setting(
        Hops(trace.meta.graph), 1, 0, SimulatedFleet.uniform("llama-3-8b/l4", 2), joint_radius=0
    )
    again = replay(trace, "versioned", setting)
    assert again.makespan_sim_s == pytest.approx(live.makespan_s, rel=0.02)
    told = CliRunner().invoke(cli, ["replay", str(tmp_path / "run" / "trace.parquet")])
    assert told.exit_code == 0, told.output
    assert "hops metric, radius 1, velocity 0" in " ".join(told.output.split())


def test_a_graph_is_not_measured_otherwise(tmp_path: Path) -> None:
    scenario = make(agents=5)
    Simulation(scenario.world, scenario.agents, out=tmp_path / "run").run(2)
    path = str(tmp_path / "run" / "trace.parquet")
    told = CliRunner().invoke(cli, ["replay", path, "--metric", "chebyshev"])
    assert str(told.exception) == (
        "the trace has a graph; its metric should be hops, not chebyshev"
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 1000])
def test_the_graph_is_a_small_world(count: int) -> None:
    graph = acquaintances(count, Random(count))
    Hops(graph)  # which checks that every tie is listed at both ends
    assert len(graph) == count
    assert all(node not in of for node, of in enumerate(graph))
    if count >= 50:
        assert sum(map(len, graph)) / count == pytest.approx(FRIENDS, rel=0.1)
        seen = len(Hops(graph).ball(0, 8))
        assert seen > 0.9 * count, "far ties make it small"


def test_it_scales_and_is_drawn_by_the_seed() -> None:
    many = make(agents=1000, seed=3)
    assert len({agent.name for agent in many.agents}) == 1000
    assert many.world.graph.neighbours == make(agents=1000, seed=3).world.graph.neighbours
    assert many.world.graph.neighbours != make(agents=1000, seed=4).world.graph.neighbours
    result = run(many, 4)
    assert (result.agents, result.steps) == (1000, 4)
    assert result.calls > 100
