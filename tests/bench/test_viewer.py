"""`metropolis bench viewer` reads every kind of chunk."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from metropolis.bench.viewer import command
from tests.viewer.data.conftest import simulation


def test_every_kind_of_chunk_is_measured(tmp_path: Path) -> None:
    simulation(tmp_path / "run").run(20)
    for beside in ([], ["--beside", "lockstep"]):
        found = CliRunner().invoke(command, [str(tmp_path / "run"), *beside, "--json"])
        assert found.exit_code == 0, found.output
        rows = json.loads(found.output)["rows"]
        kinds = {"positions", "moments", "executions", "calls", "ends", "bounds", "mind", "call"}
        assert rows.keys() == {"opening", "meta", *kinds}
        assert all(row["wall_s"] >= 0 for row in rows.values())
    plain = CliRunner().invoke(command, [str(tmp_path / "run")])
    assert "memory beyond an idle server" in plain.output
