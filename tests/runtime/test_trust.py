"""Trust in Python: users provide world and model, but the folder still names a store."""

from __future__ import annotations

import shutil
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.reruns.fork import fork
from metropolis.store.base import StoreError
from metropolis.types import MetropolisError
from tests.forgery import forge
from tests.runtime.walkers import Meadow, Walker, author


def simulation(out: Path, **how: Any) -> Simulation:
    world = Meadow(3)
    return Simulation(world, [Walker(n) for n in world.names], Scripted(author), out=out, **how)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of two runs in a store."""
    found = tmp_path / "one", tmp_path / "two"
    for folder in found:
        simulation(folder, store="embedded").run(2)
    return found


def test_a_store_that_somebody_else_has_named(folders: tuple[Path, Path]) -> None:
    folder, _ = folders
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        forge(folder / "store.json", lambda content: content.update(address=place, run="mine"))
        with pytest.raises(MetropolisError, match=r"store.json: has been changed .* trust=True"):
            simulation(folder, resume=True)
        with pytest.raises(MetropolisError, match="has been changed"):
            simulation(folder, resume=True, store="embedded")  # that would be another run
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    with pytest.raises(StoreError, match="does not answer"):
        simulation(folder, resume=True, trust=True)
    assert simulation(folder, resume=True, store="memory").run(4).steps == 4


def test_nobody_can_trust_a_damaged_name_of_a_store(folders: tuple[Path, Path]) -> None:
    folder, _ = folders
    file = folder / "store.json"
    file.write_bytes(file.read_bytes().replace(b"store", b"shore"))
    with pytest.raises(MetropolisError, match=r"store.json: is damaged .*; restore .*memory"):
        simulation(folder, resume=True, trust=True)
    assert simulation(folder, resume=True, store="memory").run(4).steps == 4


def test_the_store_of_one_run_is_not_that_of_another(folders: tuple[Path, Path]) -> None:
    one, two = folders
    shutil.copy(one / "store.json", two / "store.json")
    with pytest.raises(MetropolisError, match="has been changed since this user signed it"):
        simulation(two, resume=True)
    assert simulation(one, resume=True).run(3).steps == 3


def test_a_branch_of_what_somebody_else_has_written_is_not_signed(tmp_path: Path) -> None:
    simulation(tmp_path / "origin", about={"world": "mine"}).run(4)
    forge(tmp_path / "origin" / "run.json", lambda run: run["about"].update(world="theirs"))
    world = Meadow(3)
    for trust in (False, True):
        out = tmp_path / f"trust {trust}"
        agents = [Walker(name) for name in world.names]
        fork(tmp_path / "origin", world, agents, at=2, out=out, trust=trust)
        branch = RunDirectory(out)
        assert branch.read()["about"] == {"world": "theirs"}
        assert (branch.distrust is None) == trust
    simulation(tmp_path / "trust False", resume=True, about={"world": "mine"}).run(4)
    branch = RunDirectory(tmp_path / "trust False")
    assert (branch.read()["about"], branch.distrust) == ({"world": "mine"}, None)


def test_only_this_user_reads_the_files(folders: tuple[Path, Path]) -> None:
    files = [path for path in folders[0].rglob("*") if path.is_file()]
    assert {"run.json", "store.json", "history.jsonl", "trace.parquet"} <= {f.name for f in files}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folders[0].stat().st_mode) == 0o700
