"""Seeds of `metropolis bench ai-metropolis`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metropolis.bench import ai_metropolis
from metropolis.trace.generate.calls import generate_calls
from metropolis.trace.generate.movement import generate_movement
from metropolis.trace.parquet import write_trace
from metropolis.trace.schema import Trace


@pytest.fixture(scope="module")
def movement() -> Trace:
    return generate_movement(5, (6.0, 13.0), 0)


def lengths(trace: Trace) -> list[int]:
    return trace.calls.prompt_tokens.tolist()


def test_calls_follow_the_seed_unless_they_are_recorded(movement: Trace) -> None:
    generated = generate_calls(movement, 1)
    recorded = replace(generated, meta=replace(generated.meta, calls_origin="recorded"))
    for seed in (0, 1):
        expected = lengths(generate_calls(movement, seed))
        for trace in (movement, generated):
            assert lengths(ai_metropolis.with_calls(trace, seed)) == expected
        assert ai_metropolis.with_calls(recorded, seed) is recorded
    assert lengths(generate_calls(movement, 0)) != lengths(generated)


def test_each_seed_gives_the_rows_that_it_gives_alone(
    movement: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "movement.parquet"
    write_trace(movement, path)
    monkeypatch.setattr(ai_metropolis, "AGENTS", (5,))
    monkeypatch.setattr(ai_metropolis, "PRIORITY_AGENTS", 5)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            ai_metropolis.command, [str(path), *arguments], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    both = json.loads(run("--seeds", "2,5", "--json"))
    alone = json.loads(run("--seeds", "5", "--json"))
    for part in ("scaling", "priority"):
        rows = both[part]
        assert rows[len(rows) // 2 :] == alone[part]
        assert rows[0] != alone[part][0] | {"seed": 2}
    calls = [row["calls"] for row in both["scaling"] if row["stretch"] == "day"][::2]
    assert f"{np.mean(calls):,.0f} ±{np.std(calls, ddof=1):,.0f}" in run("--seeds", "2,5")
