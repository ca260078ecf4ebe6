"""The folder of a run with an embedded store can be moved and copied as a whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.embedded import EmbeddedServer
from metropolis.store.factory import open_server
from tests.runtime.walkers import Meadow, Walker, author
from tests.store.test_tls import tls_server

STEPS = 6


def run(out: Path, steps: int, **how: Any) -> RunResult:
    world = Meadow(3)
    walkers = [Walker(name) for name in world.names]
    return Simulation(world, walkers, Scripted(author), out=out, **how).run(steps)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("store", ["embedded", "embedded:{out}/within/it"])
def test_a_copy_goes_on_in_its_own_store(tmp_path: Path, store: str) -> None:
    whole = run(tmp_path / "whole", STEPS)
    out, copy = tmp_path / "out", tmp_path / "copy"
    store = store.format(out=out)
    run(out, 2, store=store)
    shutil.copytree(out, copy)
    before = files(out)
    assert run(copy, STEPS, resume=True).history_sha256 == whole.history_sha256
    assert files(out) == before
    out.rename(tmp_path / "moved")
    assert run(tmp_path / "moved", STEPS, resume=True).history_sha256 == whole.history_sha256
    assert not out.exists()


def test_a_store_elsewhere_is_the_same_for_a_moved_run(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'elsewhere'}"
    run(tmp_path / "out", 2, store=address)
    assert json.loads((tmp_path / "out" / "store.json").read_text())["address"] == address
    (tmp_path / "out").rename(tmp_path / "moved")
    assert run(tmp_path / "moved", STEPS, resume=True).steps == STEPS
    with open_server(address, attach=True) as server:
        (name,) = server.runs()
        about = server.store(name).inspect()
        assert set(about.steps) == {STEPS} == {about.info.last_step}  # not that of the first run


def test_a_copy_of_a_store_in_use_is_not_that_store(tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    run(out, 2, store="embedded")
    with EmbeddedServer(out / "store") as original:
        shutil.copytree(out, copy)
        with open_server(f"embedded:{copy / 'store'}", attach=True) as server:
            (name,) = server.runs()
            server.remove(name)
        assert original.runs() == [name]


def test_files_for_tls_are_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on Ray begin in another folder, too."""
    certificates = tmp_path / "1 + 1"
    certificates.mkdir()
    with tls_server(certificates) as port:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("METROPOLIS_STORE_PASSWORD", raising=False)
        options = "ssl_ca_certs=1 %2b 1/certificate&socket_timeout=5"
        run(tmp_path / "out", 2, store=f"rediss://localhost:{port}/0?{options}")
        monkeypatch.chdir("/")
        assert run(tmp_path / "out", STEPS, resume=True).steps == STEPS
