"""A folder with a random damage is shown as far as it is intact, or refused in a sentence."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import pytest

from metropolis.durable import read_object, write_object
from metropolis.types import MetropolisError
from metropolis.viewer.data.opening import open_run
from metropolis.viewer.data.side import Side


def damage(folder: Path, random: Random) -> str:
    """Damage one file; return how."""
    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content = bytearray(path.read_bytes())
    at = random.randrange(len(content))
    how = random.choice(("flip", "cut", "insert", "repeat", "remove", "folder", "number", "empty"))
    match how:
        case "flip":
            content[at] ^= 1 << random.randrange(8)
        case "cut":
            del content[at:]
        case "insert":
            content[at:at] = random.randbytes(random.randrange(1, 40))
        case "repeat":
            content[at:at] = content[at : at + 200]
        case "number":
            digits = [i for i, byte in enumerate(content) if 48 <= byte <= 57] or [at]
            at = random.choice(digits)
            content[at : at + 1] = random.choice(
                (b"-1", b"99999999999999999999", b"1e999", b"null")
            )
        case "empty":
            content.clear()
    if how in ("remove", "folder"):
        path.unlink()
        if how == "folder":
            path.mkdir()
    else:
        path.write_bytes(content)
    return f"{path.relative_to(folder)}: {how} at {at}"


HOSTILE = (None, True, -1, 2**63, 1e308, "", "\x00<script>", "é" * 3000, [], {}, [[]], {"": None})


def forge(folder: Path, random: Random) -> str:
    """Change one value of view.json, with a right checksum; return how."""
    path = folder / "view.json"
    content = read_object(path, "")
    content.pop("crc32", None)
    at: Any = content
    where = []
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = random.choice(keys)
        where.append(key)
        if not (isinstance(at[key], dict | list) and at[key] and random.random() < 0.8):
            break
        at = at[key]
    at[key] = random.choice(HOSTILE)
    write_object(path, content)
    return f"view.json: {where} is {at[key]!r:.40}"


def read_all(side: Side) -> None:
    """Read every chunk as a page would."""
    meta = side.meta()
    wanted = [(name, at) for name, count in meta["counts"].items() for at in range(count)]
    wanted += [("ends", 0), ("bounds", 0), ("meta", 0), *(("call", at) for at in range(3))]
    for name, at in wanted:
        try:
            side.chunk(name, f"{at}")
        except MetropolisError:
            continue
    for step in (0, meta["steps"]):
        try:
            side.chunk("mind", f"0-{step}")
        except MetropolisError:
            continue
    try:
        side.refresh()
    except MetropolisError:
        return


def check(run: Path, folder: Path, seeds: range) -> None:
    for seed in seeds:
        copytree(run, folder)
        how = (forge if seed % 3 == 0 else damage)(folder, Random(seed))
        try:
            read_all(open_run(folder))
        except MetropolisError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}, {how}") from error
        rmtree(folder)


def test_a_damaged_folder(shared_run: Path, tmp_path: Path) -> None:
    check(shared_run, tmp_path / "damaged", range(40))


@pytest.mark.campaign
def test_many_damaged_folders(shared_run: Path, tmp_path: Path) -> None:
    first = int(os.environ.get("METROPOLIS_SEED", "0"))
    check(shared_run, tmp_path / "damaged", range(first, first + 3_000))


def test_a_pipe_in_place_of_a_timeline(run_copy: Path) -> None:
    """A folder of another user may contain anything: reading a pipe would not end."""
    path = run_copy / "timeline" / "calls-0.arrows"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MetropolisError, match="is not a file"):
        open_run(run_copy)


@pytest.mark.parametrize("kind", ["executions", "calls"])
@pytest.mark.parametrize("how", ["cut", "empty", "flip", "remove"])
def test_a_damaged_timeline_is_named(run_copy: Path, kind: str, how: str) -> None:
    """Else the page would show fewer calls than there were, and no reason."""
    path = run_copy / "timeline" / f"{kind}-0.arrows"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if how == "flip":
        content[middle : middle + 400] = bytes(400)
    assert open_run(run_copy).meta()["note"] is None
    path.write_bytes({"cut": content[:-300], "empty": b""}.get(how, content))
    if how == "remove":
        path.unlink()
    assert (
        f"{kind}-0.arrows: is missing, incomplete or damaged" in open_run(run_copy).meta()["note"]
    )
