"""The world `recorded` makes the calls of a trace, in real and in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis import Client, MetropolisError, Simulation, check_world, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.tokens import approximate_tokens
from metropolis.runtime.live.configuration import LiveMode
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.schema import Trace
from metropolis.worlds.recorded import _marked, author
from tests.runtime.test_live_is_replayed import Case
from tests.small_traces import graph_trace, small_trace

FLEET = SimulatedFleet.uniform("llama-3-8b/l4", 1)


def run(path: Path, llm: Any = None, **options: Any) -> RunResult:
    scenario = make_scenario("recorded", options={"trace": f"{path}"})
    client = Client(llm or Scripted(author))
    return Simulation(scenario.world, scenario.agents, client, **options).run(scenario.steps)


def town(seed: int, talk: float = 0.0) -> Trace:
    """All agents of a town that talks are within the joint radius."""
    radius, edge = (8, 4) if talk else (2, 12)
    return small_trace(seed, agents=5, steps=8, edge=edge, radius=radius, talk=talk)


@pytest.mark.parametrize("is_live", [False, True])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_a_run_takes_as_long_as_the_replay(
    tmp_path_factory: pytest.TempPathFactory, is_live: bool, seed: int
) -> None:
    """On several instances, calls of one instant may be placed otherwise."""
    path = tmp_path_factory.mktemp("trace") / "day.parquet"
    trace = Case(seed, 4, 6, 6, 1, 0.0).run("lockstep").trace if is_live else town(seed)
    assert trace is not None
    write_trace(trace, path)
    for mode, options in {
        "lockstep": {"mode": "lockstep"},
        "versioned": {"mode": "out_of_order"},
        "conservative": {"mode": "out_of_order", "rule": "conservative"},
    }.items():
        ran = run(path, VirtualInstances(Scripted(author), FLEET), **options)
        expected = replay(trace, mode, Setting.of(trace.meta, FLEET))
        assert ran.makespan_s == expected.makespan_sim_s
        assert ran.calls == len(trace.calls)


@pytest.mark.parametrize("trace", [town(1), town(2, 0.1), graph_trace(3)], ids=str)
def test_histories_and_calls_are_equal_in_every_mode(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "day.parquet"
    write_trace(trace, path)
    histories = set()
    for mode in get_args(LiveMode):
        histories.add(run(path, mode=mode, out=tmp_path / mode).history_sha256)
        made = read_trace(tmp_path / mode / "trace.parquet")
        assert np.array_equal(made.positions, trace.positions)
        for column in ("step", "agent", "prompt_tokens", "output_tokens"):
            sort = np.lexsort((made.calls.output_tokens, made.calls.prompt_tokens))
            wanted = np.lexsort((trace.calls.output_tokens, trace.calls.prompt_tokens))
            assert np.array_equal(
                getattr(made.calls, column)[sort], getattr(trace.calls, column)[wanted]
            )
    assert len(histories) == 1


class Listening(Scripted):
    """Keeps the requests."""

    def __init__(self) -> None:
        super().__init__(author)
        self.requests: list[Any] = []

    async def complete(self, request: Any) -> Any:
        self.requests.append(request)
        return await super().complete(request)


def test_prompts_share_the_recorded_prefixes(tmp_path: Path) -> None:
    trace = town(4)
    calls = trace.calls
    shared = replace(
        calls, prefix_id=calls.step.astype(np.int64) % 2, prefix_tokens=calls.prompt_tokens // 2
    )
    write_trace(replace(trace, calls=shared), tmp_path / "day.parquet")
    listening = Listening()
    run(tmp_path / "day.parquet", listening)
    beginnings: dict[int, str] = {}
    for request in listening.requests:
        assert request.ignore_eos
        tokens = approximate_tokens(request.prompt)
        words = request.prompt.split()[: tokens // 2]
        longest = beginnings.setdefault(request.step % 2, " ".join(words))
        length = min(len(words), len(longest.split()))
        assert words[:length] == longest.split()[:length]
    assert len({request.prompt for request in listening.requests}) == len(listening.requests)


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order"])
def test_prompts_are_those_of_the_trace(mode: LiveMode, tmp_path: Path) -> None:
    options = {"mode": mode, "keep_text": True}
    town = make_scenario("smallville", agents=6)
    client = Client(VirtualInstances(Scripted(town.author), FLEET))
    live = Simulation(town.world, town.agents, client, out=tmp_path / "live", **options).run(60)
    path = tmp_path / "live" / "trace.parquet"
    scenario = make_scenario("recorded", options={"trace": f"{path}", "texts": True})
    client = Client(VirtualInstances(Scripted(author), FLEET))
    simulation = Simulation(scenario.world, scenario.agents, client, out=tmp_path / "b", **options)
    assert simulation.run(scenario.steps).makespan_s == live.makespan_s
    prompts = [read_trace(tmp_path / of / "trace.parquet").calls.prompt for of in ("live", "b")]
    assert prompts[0] is not None
    assert prompts[1] is not None
    assert len(prompts[0]) > 100
    assert sorted(one[:-4] for one in prompts[0]) == sorted(one[:-4] for one in prompts[1])


@given(text=st.text(), seen=st.lists(st.text()))
def test_a_mark_changes_no_count_of_tokens(text: str, seen: list[str]) -> None:
    marked = _marked(text, seen)
    assert approximate_tokens(marked) == approximate_tokens(text)
    assert marked == _marked(text, seen)
    assert seen or marked == text
    kept = max(0, len(text.rstrip()) - 4)
    assert marked[:kept] == text[:kept]


def test_a_mark_tells_what_is_seen() -> None:
    assert len({_marked("What now, Ada?\n", [who]) for who in ("a", "b", "c")}) == 3


def test_texts_must_be_in_the_trace(tmp_path: Path) -> None:
    write_trace(town(3), tmp_path / "day.parquet")
    with pytest.raises(
        MetropolisError, match=r"day.parquet: has no texts of prompts, which `metropolis run"
    ):
        make_scenario("recorded", options={"trace": f"{tmp_path}/day.parquet", "texts": True})


def test_a_world_that_the_check_accepts(tmp_path: Path) -> None:
    write_trace(town(5, 0.1), tmp_path / "day.parquet")
    check_world(
        "recorded",
        seeds=[0],
        steps=8,
        schedules=1,
        world_options={"trace": f"{tmp_path}/day.parquet"},
    )


def test_chats_are_for_servers_without_completions(tmp_path: Path) -> None:
    write_trace(town(6), tmp_path / "day.parquet")
    options = {"trace": f"{tmp_path}/day.parquet", "chat": True}
    scenario = make_scenario("recorded", options=options)
    listening = Listening()
    Simulation(scenario.world, scenario.agents, Client(listening)).run(scenario.steps)
    assert all(request.messages for request in listening.requests)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"agents": 6}, r"day.parquet: has 5 agents; --agents should be at most that"),
        ({"first_hour": 9.0}, "is not within the trace"),
        ({"trace": "none.parquet"}, "none.parquet: does not exist; it should be a trace"),
        ({"chat": "perhaps"}, "its option 'chat' is 'perhaps'; it should be of type bool"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write_trace(town(7), tmp_path / "day.parquet")
    given = {"trace": f"{tmp_path}/day.parquet"} | options
    with pytest.raises(MetropolisError, match=sentence):
        make_scenario("recorded", agents=given.pop("agents", None), options=given)


def test_a_run_beyond_the_end_of_the_trace_is_refused(tmp_path: Path) -> None:
    write_trace(town(8), tmp_path / "day.parquet")
    scenario = make_scenario("recorded", options={"trace": f"{tmp_path}/day.parquet"})
    simulation = Simulation(scenario.world, scenario.agents)
    with pytest.raises(MetropolisError, match="the trace ends after 8 steps; --steps should be"):
        simulation.run(9)


def test_agents_far_apart_do_not_wait_for_each_other(tmp_path: Path) -> None:
    far = small_trace(1, agents=5, steps=8, edge=60, radius=2, talk=0.5)
    write_trace(far, tmp_path / "day.parquet")
    with pytest.raises(MetropolisError, match=r"waits for one of agent \d, which should be wi"):
        run(tmp_path / "day.parquet")
