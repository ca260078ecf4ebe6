"""A world that has changed since a run of it began."""

from pathlib import Path

import pytest

from metropolis.world.scenario import files_sha256
from tests.cli.conftest import summary
from tests.cli.test_world import checkout
from tests.commands import Command

CHANGED = "has changed since the run in mine began"


def test_a_changed_file_is_told_once(run: Command) -> None:
    run("meadow.py", "--steps", "4", "--out", "mine", "--quiet")
    assert CHANGED not in run("resume", "mine", "--steps", "6", "--quiet")[2]
    with Path("meadow.py").open("a") as file:
        file.write("# another line\n")
    for command in ("show", "ask"):
        question = ["How are you?"] if command == "ask" else []
        assert CHANGED in run(command, "mine", "--agent", "w00", *question)[2]
    status, _, said = run("resume", "mine", "--steps", "8", "--quiet")
    assert (status, said.count(CHANGED)) == (0, 1)
    assert "meadow.py has changed" in said
    assert CHANGED not in run("resume", "mine", "--steps", "10", "--quiet")[2]


def test_the_hash_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    assert files_sha256("smallville") is None
    hashes = set()
    for name, content in (("town.json", "a"), ("residents.toml", "b"), ("residents.toml", "c")):
        (tmp_path / name).write_text(content)
        hashes.add(files_sha256(f"{tmp_path}"))
    (tmp_path / "pasts.json").write_text("c")
    (tmp_path / "residents.toml").rename(tmp_path / "others.toml")
    hashes.add(files_sha256(f"{tmp_path}"))
    assert len(hashes - {None}) == 4


def test_a_run_without_agents_is_resumed_without_agents(run: Command) -> None:
    """The world may make others for a number of agents, though it is the same number."""
    source = Path("meadow.py").read_text()
    different = source.replace("side=9", "side=7 if agents else 9")
    Path("meadow.py").write_text(different)
    whole = summary(run, "meadow.py", "--steps", "12", "--quiet", "--out", "whole")
    run("meadow.py", "--steps", "4", "--quiet", "--out", "mine")
    resumed = summary(run, "resume", "mine", "--steps", "12", "--quiet")
    assert resumed["history_sha256"] == whole["history_sha256"]
    assert run("resume", "mine", "--verify", "--quiet")[0] == 0


def test_a_folder_is_found_from_another_directory(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkout(Path("source"))
    assert run("world", "import-genagent", f"{source}", "--out", "town")[0] == 0
    run("town", "--steps", "4", "--out", "mine", "--quiet")
    monkeypatch.chdir(source)
    assert run("show", "../mine", "--agent", "Ann Ash")[0] == 0
