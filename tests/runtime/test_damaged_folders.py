"""A damaged run folder leads to the undamaged history or to one sentence, never to another history.

Campaign: `METROPOLIS_FUZZ_INPUTS=20000 pytest -m campaign tests/runtime/test_damaged_folders.py`;
a failure names the seed of its input.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import metropolis
from metropolis.bench.recovery.damage import damage
from metropolis.line_file import Format, LineFile
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Request
from metropolis.llm.client import Client
from metropolis.llm.journal import JOURNAL
from metropolis.runtime.folder.calls_file import CALLS
from metropolis.runtime.folder.comparison import compare
from metropolis.runtime.folder.history import HISTORY, REPEAT_DIFFERS
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.types import MetropolisError
from tests.forgery import forge
from tests.runtime.purchases import leave
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 10
SEED = 3
INPUTS = 150
CAMPAIGN_INPUTS = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "2000"))
HANGS_S = 60.0


def other_author(request: Request, draw: Random) -> str:
    return f"no {author(request, draw)}"


def simulation(
    out: Path | None, *, words: object = author, seed: int = SEED, **how: object
) -> Simulation:
    world = Meadow(3, side=4, joint=2)
    llm = Client(Scripted(words), retries=0)  # type: ignore[arg-type]
    agents = [Walker(name) for name in world.names]
    return Simulation(world, agents, llm, seed=seed, out=out, **how)  # type: ignore[arg-type]


def fork(run: Path, out: Path, at: int) -> None:
    world = Meadow(3, side=4, joint=2)
    agents = [Walker(name) for name in world.names]
    metropolis.fork(run, world, agents, at=at, out=out, replay_llm=True)


@dataclass(frozen=True)
class Runs:
    """Folders of the same run, and one of another run."""

    folders: tuple[Path, ...]
    other: Path
    whole: RunResult


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    top = tmp_path_factory.mktemp("runs")
    names = ("finished", "at its end alone", "interrupted", "early", "branch")
    finished, ended, interrupted, early, branch = folders = tuple(top / name for name in names)
    whole = simulation(finished, checkpoint_wall_s=0).run(STEPS)
    simulation(ended).run(STEPS)
    for folder, wall_s in ((interrupted, 0.0), (early, 1000.0)):
        leave(simulation(folder, checkpoint_wall_s=wall_s), STEPS, 6)
    fork(finished, branch, 5)
    leave(simulation(branch, resume=True, checkpoint_wall_s=0), STEPS, 8)
    simulation(top / "other", words=other_author, checkpoint_wall_s=0).run(STEPS)
    return Runs(folders, top / "other", whole)


@contextmanager
def watched(what: str) -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError(what)

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(runs: Runs, folder: Path, seed: int) -> str:
    """Damage `folder` once; return the outcome, and assert that it is right."""
    draw = Random(f"damage {seed}")
    origin = draw.choice(runs.folders)
    it, branch = folder / "it", folder / "branch"
    for old in (it, branch):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(origin, it)
    files = sorted(path for path in it.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(files)
    change = damage(path, draw, runs.other)
    what = f"seed {seed}: {origin.name}, {path.relative_to(it)}, {change}"
    use = draw.choice(["resume", "resume", "diff", "fork"])
    wrong = path.name == "run.json" and not same_bytes(path, origin / path.name)
    sentence = ""
    try:
        with watched(what):
            if use == "diff":
                assert not compare(it, runs.folders[0]).differing, what
                assert not wrong, what
                return "read"
            if use == "fork":
                fork(it, branch, draw.randrange(STEPS + 1))
                it = branch
            result = simulation(it, resume=True).run(STEPS)
    except MetropolisError as error:
        sentence = str(error)
    except Exception as error:
        raise AssertionError(what) from error
    if sentence:
        assert f"{folder}" in sentence, what
        assert "\n" not in sentence, what
        return "refused"
    assert not wrong, what
    whole = runs.whole
    assert result.history_sha256 == whole.history_sha256, what
    assert (result.steps, result.calls) == (whole.steps, whole.calls), what
    assert compare(it, runs.folders[0]).differing == 0, what
    return use


def same_bytes(path: Path, other: Path) -> bool:
    return path.is_file() and path.read_bytes() == other.read_bytes()


def attack(runs: Runs, folder: Path, seeds: range) -> Counter[str]:
    return Counter(outcome(runs, folder, seed) for seed in seeds)


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "it"))


def test_an_earlier_checkpoint_stands_in_for_a_damaged_one(runs: Runs, tmp_path: Path) -> None:
    it = copied(runs.folders[0], tmp_path)
    file = it / "checkpoints" / f"{STEPS}.json.gz"
    line = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(line.replace(b'"step":10', b'"step":11')))
    run = simulation(it, resume=True)
    assert 0 < run.first_step < STEPS
    (note,) = run.notes
    assert f"{file}, line 1: is damaged (its checksum does not fit)" in note
    assert note.endswith(f"; the run now continues from its checkpoint of step {run.first_step}")
    assert run.run(STEPS).history_sha256 == runs.whole.history_sha256
    assert run.notes == [note]
    assert not simulation(it, resume=True).notes


def relived(folder: Path, source: Path, tmp_path: Path) -> Path:
    """Rerun `source` from its beginning with another author."""
    other = Path(shutil.copytree(source, tmp_path / folder))
    shutil.rmtree(other / "checkpoints")
    (other / "journal.jsonl").unlink()
    simulation(other, words=other_author, resume=True).run(STEPS)
    return other


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("history.jsonl damaged", "line 3: is damaged"),
        ("history.jsonl short", "line 3: is damaged (it ends here"),
        ("history.jsonl other", "which records other histories; the run now continues"),
        ("calls.jsonl damaged", "line 3: is damaged"),
        ("calls.jsonl other", "which records other calls; the run now continues"),
        ("calls.jsonl short", "it ends after 1 of "),
    ],
)
def test_a_file_that_spoils_many_checkpoints_is_told_once(
    runs: Runs, tmp_path: Path, file: str, why: str
) -> None:
    it = copied(runs.folders[0], tmp_path)
    assert len(steps_of(it)) > 2
    name, how = file.split()
    lines = (it / name).read_bytes().splitlines(keepends=True)
    match how:
        case "damaged":
            lines[2] = lines[2].replace(b"1", b"2")
        case "short":
            del lines[2:]
        case "other":
            other = relived(Path("other"), runs.folders[0], tmp_path)
            lines = (other / name).read_bytes().splitlines(keepends=True)
    (it / name).write_bytes(b"".join(lines))
    run = simulation(it, resume=True)
    (note,) = run.notes
    assert note.startswith(f"{it / name}")
    assert why in note
    assert note.count("the run now continues from its") == 1
    assert run.run(STEPS).history_sha256 == runs.whole.history_sha256


@pytest.mark.parametrize("origin", ["finished", "branch"])
def test_another_seed_than_that_of_the_checkpoints(runs: Runs, tmp_path: Path, origin: str) -> None:
    """No answer is bought again."""
    (source,) = (folder for folder in runs.folders if folder.name == origin)
    it, bought = copied(source, tmp_path), []

    def sold(request: Request, draw: Random) -> str:
        bought.append(request)
        return author(request, draw)

    def another(content: dict[str, Any]) -> None:
        content["seed"] = SEED + 1
        for branch in content["lineage"]:
            branch["seed"] = SEED + 1

    forge(it / "run.json", another)
    newest = it / "checkpoints" / f"{max(steps_of(it))}.json.gz"
    sentence = rf"{newest}: continues with seed {SEED}, but {it}/run.json has seed {SEED + 1};"
    with pytest.raises(MetropolisError, match=sentence):
        simulation(it, words=sold, resume=True, seed=SEED + 1, trust=True).run(STEPS)
    with pytest.raises(MetropolisError, match=r"has seed 4; restore the file as"):
        fork(it, tmp_path / "branch", 8)
    assert not bought


@pytest.mark.parametrize("file", ["history.jsonl", "calls.jsonl", "journal.jsonl"])
def test_a_repeated_line_is_named(runs: Runs, tmp_path: Path, file: str) -> None:
    it = copied(runs.folders[0], tmp_path)
    lines = (it / file).read_bytes().splitlines(keepends=True)
    (it / file).write_bytes(b"".join([*lines[:3], *lines[2:]]))
    with pytest.raises(MetropolisError, match=rf"/{file}, line 4: is damaged .* begin with "):
        fork(it, tmp_path / "branch", STEPS)
    assert not (tmp_path / "branch").exists()


def test_a_checkpoint_of_another_run_or_point_is_found_out(runs: Runs, tmp_path: Path) -> None:
    it = copied(runs.folders[0], tmp_path)
    newest = it / "checkpoints" / f"{STEPS}.json.gz"
    shutil.copyfile(runs.other / "checkpoints" / newest.name, newest)
    with pytest.raises(MetropolisError, match=r"belongs to run .*restore the file of this run"):
        simulation(it, resume=True)
    shutil.copyfile(it / "checkpoints" / f"{min(steps_of(it))}.json.gz", newest)
    run = simulation(it, resume=True)
    assert "it is the checkpoint of step" in run.notes[0]


@pytest.mark.parametrize("file", ["run.json", "history.jsonl", "calls.jsonl", "journal.jsonl"])
def test_a_file_that_the_disk_does_not_return_is_named(
    runs: Runs, tmp_path: Path, file: str
) -> None:
    it = copied(runs.folders[0], tmp_path)
    (it / file).unlink()
    (it / file).symlink_to("/proc/self/mem")  # its first byte cannot be read
    with pytest.raises(MetropolisError, match=rf"{it / file}: cannot be read: Input/output error"):
        fork(it, tmp_path / "branch", STEPS)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (HISTORY, b'"calls":true,"is":{}'),
        (HISTORY, b'"calls":1,"is":[]'),
        (HISTORY, b'"calls":1,"is":{"step":0,"writes":[]}'),
        (CALLS, b'"is":{}'),
        (JOURNAL, b'"is":{}'),
    ],
)
def test_lines_of_another_form_are_named(
    runs: Runs, tmp_path: Path, kind: Format, content: bytes
) -> None:
    """Checksums detect no content that another program has written."""
    it = copied(runs.folders[0], tmp_path)
    path = it / f"{kind.name.removeprefix('metropolis ')}.jsonl"
    path.unlink()
    file = LineFile(path, kind, json.loads((it / "run.json").read_bytes())["run"])
    file.cut(None)
    file.append([content])
    file.close()
    shutil.rmtree(it / "checkpoints")
    sentence = rf"{path}, line 2: is damaged \(its content is not that of a {kind.name}"
    with pytest.raises(MetropolisError, match=sentence):
        fork(it, tmp_path / "branch", 1)


def test_a_history_of_another_run_is_not_compared(runs: Runs, tmp_path: Path) -> None:
    it = copied(runs.folders[0], tmp_path)
    shutil.copyfile(runs.other / "history.jsonl", it / "history.jsonl")
    for pair in ((it, runs.other), (runs.other, it)):
        with pytest.raises(MetropolisError, match=rf"{it}/history.jsonl: belongs to run "):
            compare(*pair)


def steps_of(folder: Path) -> list[int]:
    return [int(path.name.removesuffix(".json.gz")) for path in (folder / "checkpoints").iterdir()]


def test_steps_that_come_again_otherwise_are_told(runs: Runs, tmp_path: Path) -> None:
    it = copied(runs.folders[3], tmp_path)  # no checkpoint
    (it / "journal.jsonl").unlink()
    run = simulation(it, words=other_author, resume=True)
    assert run.run(STEPS).history_sha256 != runs.whole.history_sha256
    assert run.notes == [REPEAT_DIFFERS]


def test_damage_is_made_good_or_told(runs: Runs, tmp_path: Path) -> None:
    found = attack(runs, tmp_path, range(INPUTS))
    assert min(found[use] for use in ("refused", "resume")) > INPUTS // 10, found


@pytest.mark.campaign
def test_campaign(runs: Runs, tmp_path: Path) -> None:
    found = attack(runs, tmp_path, range(CAMPAIGN_INPUTS))
    assert found.total() == CAMPAIGN_INPUTS
    sys.stdout.write(f"{found}\n")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda content: content[:-9], "end-of-stream"),
        (lambda content: b"{}" + content, "not a gzipped file"),
        (lambda content: content[:-8] + bytes(8), "crc check failed"),
        (lambda content: content[:40] + bytes(40) + content[80:], ""),
    ],
)
def test_a_checkpoint_that_does_not_decompress_is_damaged(
    runs: Runs, tmp_path: Path, broken: Callable[[bytes], bytes], why: str
) -> None:
    it = copied(runs.folders[0], tmp_path)
    file = it / "checkpoints" / f"{STEPS}.json.gz"
    file.write_bytes(broken(file.read_bytes()))
    run = simulation(it, resume=True)
    (note,) = run.notes
    assert f"{file}, line 1: is damaged (" in note
    assert why in note
    assert run.run(STEPS).history_sha256 == runs.whole.history_sha256
