"""The folders of runs, by default below `runs/`."""

from __future__ import annotations

from pathlib import Path

from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.types import MetropolisError

RUNS = Path("runs")


def new_folder(world: str) -> Path:
    """Create the next free folder `runs/WORLD-N`."""
    name = _short(world)
    try:
        RUNS.mkdir(exist_ok=True)
        number = max((n for _, n in _runs(name)), default=0) + 1
        while True:  # another run may start concurrently
            folder = RUNS / f"{name}-{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        raise MetropolisError(
            f"cannot create a folder for the run in {RUNS.resolve()}: {error.strerror}; "
            "name another one with --out"
        ) from None


def run_folder(run: str) -> Path:
    """Return `run` if it exists or is a path; otherwise it is the name of one under `runs/`."""
    folder = Path(run)
    is_name = run == folder.name and run not in ("", "..")
    return RUNS / run if is_name and not folder.exists() and (RUNS / run).is_dir() else folder


def with_journal(llm: str) -> str:
    """`llm`, with the absolute path of a journal in place of a run in `replay:RUN`."""
    kind, _, run = llm.partition(":")
    if kind != "replay" or not run:
        return llm
    named = run_folder(run)
    if (named / "run.json").exists():
        named = RunDirectory(named).journal
    return f"replay:{named.resolve()}"


def latest_folder(world: str | None) -> Path:
    """Return the folder of the last started or resumed run under `runs/`, of `world` if given."""
    name = None if world is None else _short(world)
    found = [folder for folder, _ in _runs(name) if (folder / "run.json").exists()]
    if not found:
        raise MetropolisError(
            f"there is no run{f' of {name}' if name else ''} in {RUNS.resolve()}; "
            "name the folder of one"
        )
    return max(found, key=lambda folder: (folder / "run.json").stat().st_mtime_ns)


def _short(world: str) -> str:
    return Path(world.rpartition(".py")[0] or world).name


def _runs(name: str | None) -> list[tuple[Path, int]]:
    """Return the folders and numbers of the runs of `name`; None: of every world."""
    runs: list[tuple[Path, int]] = []
    if not RUNS.is_dir():
        return runs
    for folder in RUNS.iterdir():
        world, _, number = folder.name.rpartition("-")
        if number.isdecimal() and name in (None, world):
            runs.append((folder, int(number)))
    return runs
