"""Names of agents that become folders, and files beside an export."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis import Agent, Entity, MetropolisError, Simulation, World
from metropolis.cli.run_folders import run_folder
from metropolis.durable import write_atomically
from metropolis.export.genagent import GenAgentExport
from metropolis.maps.map import GridMap
from tests.commands import Command

NOTHING = np.zeros((3, 3), np.int32)


class Grid(World):
    name = "grid"
    perception_radius = 1
    max_velocity = 1
    map = GridMap("grid", np.zeros((3, 3), bool), NOTHING, ("",), NOTHING, ("",))

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(name, (i, 0), "agent") for i, name in enumerate(self.names)]

    def observe(self, view: Any) -> Any:
        return None

    def resolve(self, cluster: Any) -> None:
        """Nothing happens."""


@dataclass
class Idle(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return None


def run_of(names: Sequence[str], out: Path) -> Path:
    Simulation(Grid(names), [Idle(name) for name in names], out=out).run(2)
    return out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("../../up", "cannot be exported"),
        ("/abs/x", "cannot be exported"),
        ("..", "cannot be exported"),
        (" . ", "cannot be exported"),
        ("a\\b", "cannot be exported"),
        ("a\nb", "cannot be exported"),
        ("a b\u00a0c", "cannot be exported"),
        ("x" * 300, "cannot be exported"),
    ],
)
def test_a_name_that_is_no_folder_is_refused(name: str, sentence: str, tmp_path: Path) -> None:
    run = run_of([name, "bob"], tmp_path / "run")
    with pytest.raises(MetropolisError, match=sentence):
        GenAgentExport(run)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_lies_beside_an_export_stays(tmp_path: Path) -> None:
    run = run_of(["ann", "bob"], tmp_path / "run")
    mine = tmp_path / "mine.partial" / "movement"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("precious")
    written = GenAgentExport(run).write(tmp_path / "mine")
    assert written.agents == 2
    assert (mine / "notes.txt").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine.partial", "run"]
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MetropolisError, match="exists"):
        GenAgentExport(run).write(tmp_path / "gone")


def test_an_export_follows_no_link(metropolis: Command, tmp_path: Path) -> None:
    run = run_of(["ann", "bob"], tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("perfetto.json.gz.partial", ".perfetto.json.gz.partial"):
        (run / name).symlink_to(victim)
    assert metropolis("export", "perfetto", run).result
    assert victim.read_text() == "precious"
    assert not (run / "perfetto.json.gz").is_symlink()
    assert gzip.decompress((run / "perfetto.json.gz").read_bytes()).startswith(b"{")


def test_a_file_of_another_name_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "page.partial").write_text("precious")
    write_atomically(tmp_path / "page.html", b"page")
    assert (tmp_path / "page.partial").read_text() == "precious"


def test_a_path_is_no_name_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("soc", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    (tmp_path / "soc").write_bytes(b"a trace")
    assert run_folder("./soc") == Path("soc")
    assert run_folder("soc") == Path("soc")
    assert run_folder("other") == Path("runs/other")
    assert run_folder("./other") == Path("other")
    assert run_folder("") == run_folder(".") == Path()
