"""Runs that end early resume to the same history, and pay for no answer twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import UnavailableError
from metropolis.llm.client import Client
from metropolis.runtime.live import recording
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from tests.runtime.purchases import Counts, leave
from tests.runtime.purchases import same as same_run
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 30
SEED = 5


class Counting(Counts, VirtualInstances):
    """The offline author, with counted answers."""

    def __init__(self, fails_at: int = 1 << 30) -> None:
        instances = Scripted(author), SimulatedFleet.uniform("llama-3-8b/l4", 2)
        super().__init__(*instances, fails_at=fails_at)


def simulation(backend: Counting, out: Path | None, **how: Any) -> Simulation:
    world = Meadow(6, side=9, joint=1)
    agents = [Walker(name) for name in world.names]
    llm = Client(backend, retries=0, max_tokens=how.pop("max_tokens", None))
    return Simulation(world, agents, llm, seed=SEED, out=out, **how)


@pytest.fixture(scope="module")
def whole() -> RunResult:
    return simulation(Counting(), None).run(STEPS)


def same(result: RunResult, whole: RunResult) -> None:
    same_run(result, whole)
    ours, theirs = result.trace.calls, whole.trace.calls
    assert ours.functions == theirs.functions
    for column in ("step", "agent", "function", "prompt_tokens", "output_tokens", "parents"):
        assert (getattr(ours, column) == getattr(theirs, column)).all()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 20), rule=st.sampled_from(["versioned", "conservative"]))
def test_a_run_goes_on_where_it_was_left(
    tmp_path_factory: pytest.TempPathFactory, whole: RunResult, seed: int, rule: str
) -> None:
    out = tmp_path_factory.mktemp("run") / "it"
    draw = Random(seed)
    bought: Counter[Any] = Counter()
    begun = False
    while True:
        backend = Counting()
        run = simulation(
            backend, out, resume=begun, rule=rule, checkpoint_wall_s=draw.choice([0, 0, 1000])
        )
        begun = True
        left_at = draw.randrange(1, STEPS)
        leave(run, STEPS, left_at)
        bought += backend.bought
        if run.result().steps == STEPS:
            break
    same(run.result(), whole)
    assert max(bought.values()) == 1
    assert bought.total() == whole.calls
    assert (read_trace(out / "trace.parquet").positions == whole.trace.positions).all()


@pytest.mark.parametrize("checkpoint_wall_s", [0, 1000])
def test_a_server_that_fails_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, whole: RunResult, checkpoint_wall_s: float
) -> None:
    out = tmp_path / "run"
    bought: Counter[Any] = Counter()
    resume = False
    for _ in range(200):
        backend = Counting(fails_at=7)
        run = simulation(backend, out, resume=resume, checkpoint_wall_s=checkpoint_wall_s)
        try:
            result = run.run(STEPS)
            break
        except UnavailableError:
            resume = True
        finally:
            bought += backend.bought
    same(result, whole)
    assert max(bought.values()) == 1


def test_a_budget_ends_the_run_which_goes_on_with_a_larger_one(
    tmp_path: Path, whole: RunResult
) -> None:
    budget = (whole.prompt_tokens + whole.output_tokens) // 2
    run = simulation(Counting(), tmp_path / "run", max_tokens=budget)
    result = run.run(STEPS)
    assert result.stopped is not None
    assert "budget" in result.stopped
    assert 0 < result.steps < STEPS
    used = run.client.total
    assert used.prompt_tokens + used.output_tokens <= budget
    result = simulation(Counting(), tmp_path / "run", resume=True).run(STEPS)
    assert result.stopped is None
    same(result, whole)


def test_a_finished_run_can_be_continued(tmp_path: Path, whole: RunResult) -> None:
    simulation(Counting(), tmp_path / "run").run(STEPS // 2)
    left = tmp_path / "run" / ".trace.parquet.0123abcd"  # of a process that was killed
    left.touch()
    backend = Counting()
    same(simulation(backend, tmp_path / "run", resume=True).run(STEPS), whole)
    assert backend.bought.total() < whole.calls
    assert not left.exists()


def test_folders_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation(Counting(), tmp_path / "run").run(2)
    with monkeypatch.context() as patched:
        patched.setattr(recording, "save_checked", lambda _: pytest.fail("an agent was saved"))
        with pytest.raises(MetropolisError, match="exists already"):
            simulation(Counting(), tmp_path / "run")
    with pytest.raises(MetropolisError, match="holds no run"):
        simulation(Counting(), tmp_path / "none", resume=True)
    world = Meadow(6)
    with pytest.raises(MetropolisError, match="seed"):
        Simulation(world, [Walker(n) for n in world.names], out=tmp_path / "run", resume=True)


def test_a_damaged_trace_is_written_again_once_it_is_removed(
    tmp_path: Path, whole: RunResult
) -> None:
    out = tmp_path / "run"
    simulation(Counting(), out).run(STEPS)
    trace = out / "trace.parquet"
    trace.write_bytes(trace.read_bytes()[:-100])
    advice = f"is damaged .* remove it, and write it again with: metropolis resume {out}$"
    with pytest.raises(MetropolisError, match=advice):
        read_trace(out)
    trace.unlink()
    same(simulation(Counting(), out, resume=True).run(STEPS), whole)
    assert (read_trace(out).positions == whole.trace.positions).all()
