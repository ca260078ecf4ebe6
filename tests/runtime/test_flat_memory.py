"""The memory of a run in a folder does not grow with its length, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal
from metropolis.runtime.folder import run_trace
from metropolis.runtime.live.simulation import Simulation
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.schema import Trace
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 40


def simulation(out: Path | None, seed: int = 1) -> Simulation:
    world = Meadow(5, side=7, joint=1)
    llm = Client(Scripted(author), retries=0)
    return Simulation(world, [Walker(n) for n in world.names], llm, seed=seed, out=out)


def same(one: Trace, other: Trace, folder: Path) -> None:
    write_trace(one, folder / "one.parquet")
    write_trace(other, folder / "other.parquet")
    tables = [pq.read_table(folder / f"{name}.parquet") for name in ("one", "other")]
    assert tables[0].equals(tables[1])
    metas = [read_trace(folder / f"{name}.parquet").meta for name in ("one", "other")]
    assert metas[0] == metas[1]


def test_nothing_is_kept_per_call_or_step(tmp_path: Path) -> None:
    run = simulation(tmp_path / "run")
    journal = run.client.journal
    assert isinstance(journal, Journal)
    for record in run.steps(STEPS):
        ahead = sum(len(known) for step, known in journal._answers.items() if step < record.step)
        assert not ahead
    result = run.result()
    assert not run._recording.recorder.parts
    assert not len(journal)
    assert not result.history
    assert result.calls == sum(1 for _ in journal.answers()) > STEPS
    totals = result.by_function.values()
    assert sum(each.output_tokens for each in totals) == result.output_tokens


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_in_pieces_is_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = Random(seed)
    monkeypatch.setattr(run_trace, "PIECE_ROWS", draw.randrange(1, 60))
    monkeypatch.setattr(run_trace, "PIECE_CALLS", draw.choice([1, 7, 1000]))
    result = simulation(tmp_path / "run", seed).run(STEPS)
    whole = simulation(None, seed).run(STEPS).trace
    same(read_trace(tmp_path / "run" / "trace.parquet"), whole, tmp_path)
    same(result.trace, whole, tmp_path)


@pytest.mark.parametrize("piece_calls", [1, 9, 1000])
def test_the_end_of_a_long_run_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_calls: int
) -> None:
    monkeypatch.setattr(run_trace, "PIECE_CALLS", piece_calls)
    result = simulation(tmp_path / "run").run(STEPS)
    whole = result.trace
    assert result.recorded.last(10**9, 10**9)[0] == 0
    for rows, calls in ((5 * 7, 10**9), (10**9, 20), (1, 10**9), (10**9, 1)):
        first, trace = result.recorded.last(rows, calls)
        assert 0 < first < STEPS
        assert trace.steps == STEPS - first
        assert trace.steps * 5 <= max(rows, 5)
        assert len(trace.calls) <= calls or trace.steps == 1
        same(trace, whole.window(first, STEPS), tmp_path)
