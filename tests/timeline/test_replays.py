"""The timeline of a replay is that of its result, and names whom each agent waited for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.cli import cli
from metropolis.durable import UnwritableError
from metropolis.runtime.replays import recorded_replay
from metropolis.runtime.replays.modes import MODES
from metropolis.runtime.replays.recorded_replay import read_recorded_replay, timeline_of
from metropolis.runtime.replays.replay import ReplayResult, Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.timeline.columns import Timeline
from metropolis.timeline.reader import read_timeline
from metropolis.timeline.writer import write_timeline
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.schema import Trace
from tests.small_traces import small_trace, small_traces

LANES = [name for name, mode in MODES.items() if not mode.is_bound]
TOWN = Path(__file__).parents[2] / "traces" / "alderbrook-11-13h.parquet"


def setting_of(trace: Trace, policy: str = "step") -> Setting:
    setting = Setting.of(trace.meta, SimulatedFleet.uniform("llama-3-8b/l4", 2))
    return replace(setting, policy=policy)


def assert_equal(found: Timeline, result: ReplayResult) -> None:
    rows, calls = found.executions, found.calls
    for name in ("dispatched", "committed"):
        assert (getattr(rows, f"{name}_s") == getattr(result, f"{name}_sim_s")).all()
    for name in ("sent", "started", "completed"):
        assert (getattr(calls, f"{name}_s") == getattr(result, f"{name}_sim_s")).all()
    for name in ("blocked_by", "cluster"):
        assert (getattr(rows, name) == getattr(result, name)).all()
    assert rows.wasted.tolist() == (result.wasted.tolist() or [0] * len(rows))
    assert (calls.instance == result.instance).all()
    assert found.makespan_s == max(result.committed_sim_s, default=0)


@settings(max_examples=60)
@given(small_traces, st.sampled_from(LANES), st.sampled_from(("step", "step+kairos")))
def test_agents_waited_for_those_who_committed_at_that_instant(
    trace: Trace, mode: str, policy: str
) -> None:
    if MODES[mode].is_optimistic:
        policy = "step"
    result = replay(trace, mode, setting_of(trace, policy))
    found = timeline_of(trace, result)
    dispatched, committed = found.dense("dispatched_s"), found.dense("committed_s")
    blocked_by, cluster = found.dense("blocked_by"), found.dense("cluster")
    for step in range(trace.steps):
        for agent in range(trace.agents):
            together = cluster[step, agent]
            assert together <= agent
            assert cluster[step, together] == together
            assert committed[step, together] == committed[step, agent]
            now_s, other = dispatched[step, agent], blocked_by[step, agent]
            waited = step > 0 and now_s > committed[step - 1, agent]
            if other < 0:
                assert not waited or MODES[mode].is_optimistic
                continue
            assert waited
            assert other != agent
            assert now_s in committed[: step + 1, other], "it was already past that step"


@settings(max_examples=20)
@given(small_traces, st.sampled_from(LANES))
def test_written_timelines_are_those_of_the_results(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, mode: str
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    result = replay(trace, mode, setting_of(trace))
    write_timeline(folder, timeline_of(trace, result))
    found = read_timeline(folder)
    assert_equal(found, result)
    offsets = trace.call_offsets()
    row = found.calls.step.astype(int) * trace.agents + found.calls.agent
    assert (offsets[row] + found.calls.number == np.arange(len(trace.calls))).all()
    names = [found.calls.functions[index] for index in found.calls.function.tolist()]
    assert names == [trace.calls.functions[index] for index in trace.calls.function.tolist()]


def test_only_wrong_executions_are_wasted() -> None:
    trace = small_trace(3, agents=8, steps=12, edge=9, radius=2)
    setting = setting_of(trace)
    eager = replay(trace, "optimistic", setting)
    sure = replay(trace, "optimistic", replace(setting, speculation=None))
    assert eager.wasted.sum() > 0
    assert sure.wasted.tolist() == [0] * trace.steps * trace.agents


def test_the_command_records_every_mode_but_the_bounds(tmp_path: Path) -> None:
    trace, folder = small_trace(5, agents=4, steps=6, edge=6, radius=2), tmp_path / "out"
    write_trace(trace, source := tmp_path / "in.parquet")
    ran = CliRunner().invoke(cli, ["replay", f"{source}", "--record", f"{folder}", "--json"])
    assert ran.exit_code == 0, ran.output
    found = read_recorded_replay(folder)
    assert found.lanes == tuple(LANES)
    assert found.setting["fleet"] == "1 x llama-3-8b/l4"
    assert (read_trace(folder / "trace.parquet").positions == trace.positions).all()
    for lane in found.lanes:
        assert len(read_timeline(folder / lane).executions) == 24
        assert read_timeline(folder / lane).meta.run == lane


def test_a_record_that_fails_leaves_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UnwritableError("no space is left")

    write_trace(
        small_trace(5, agents=4, steps=6, edge=6, radius=2), source := tmp_path / "in.parquet"
    )
    command = ["replay", f"{source}", "--modes", "lockstep", "--record", f"{tmp_path / 'out'}"]
    with monkeypatch.context() as patched:
        patched.setattr(recorded_replay, "write_object", full)
        assert isinstance(CliRunner().invoke(cli, command).exception, UnwritableError)
    assert not list((tmp_path / "out").iterdir())
    assert CliRunner().invoke(cli, command).exit_code == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--instances", "1,2"], "--record and --view are for one setting"),
        ([], "exists already"),
    ],
)
def test_unsuitable_options_are_refused(tmp_path: Path, options: list[str], sentence: str) -> None:
    (tmp_path / "taken").write_text("")
    ran = CliRunner().invoke(cli, ["replay", f"{TOWN}", "--record", f"{tmp_path}", *options])
    assert ran.exit_code != 0
    assert sentence in f"{ran.output}{ran.exception}"
