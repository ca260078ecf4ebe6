"""Traces, recordings and call logs that are damaged at random: read, or refused with a sentence.

`METROPOLIS_FUZZ_INPUTS=100000 pytest -m campaign tests/trace/test_fuzz.py` is the long campaign. A
failure names its seed.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metropolis.trace.importers import import_recording
from metropolis.trace.importers.calls import import_calls
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.types import MetropolisError
from tests.trace.damage import assert_sentence, rich_trace, rows, write_rows
from tests.trace.recordings import FORMATS, walkers

CAMPAIGN_INPUTS = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "20000"))
INPUT_SECONDS_MAX = 20
MOVEMENT = walkers(8, 3, 6)
VALUES: list[Any] = [
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**40, 1e308, -0.5, float("nan"), float("inf")),
    *("", "x", "nul\0", "é" * 300, "-1", "2023-02-13", [], {}, [[]], {"a": 1}, [1, 2], [None]),
]


def call_log(folder: Path) -> Path:
    path = folder / "calls.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "agent": agent, "function": "plan", "prompt_tokens": 9, "output_tokens": 3,
         "seq": seq, "parents": list(range(seq)), "prefix_id": 1, "prefix_tokens": 4}
        for step in range(4) for agent in range(3) for seq in range(2)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def checked_trace(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_trace(rich_trace(3, 3, 6, mapped=True), folder / "a.parquet")
    return folder / "a.parquet"


def plain_rows(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_rows(folder / "b.parquet", rows())


def movement(path: Path) -> object:
    return import_recording(path, radius=4, jumps="clamp").trace


KINDS: list[tuple[Callable[[Path], Path], Callable[[Path], object]]] = [
    *[(lambda folder, write=write: write(MOVEMENT, folder), movement) for write in FORMATS],
    (call_log, lambda path: import_calls(path, MOVEMENT)),
    (checked_trace, read_trace),
    (plain_rows, read_trace),
]


def flip(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] ^= draw.randint(1, 255)
    return bytes(changed)


def cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content))]


def repeat(draw: random.Random, content: bytes) -> bytes:
    first, last = sorted(draw.randrange(len(content)) for _ in "ab")
    return content[:last] + content[first:]


def nest(draw: random.Random, content: bytes) -> bytes:
    depth = draw.choice([3, 1000, 200_000])
    at = draw.randrange(len(content))
    return content[:at] + b"[" * depth + content[at:]


def swap_value(draw: random.Random, content: bytes) -> bytes:
    """Another value, or no such key, somewhere in the JSON."""
    packed = content[:2] == b"\x1f\x8b"
    try:
        lines = (gzip.decompress(content) if packed else content).split(b"\n")
        which = draw.randrange(len(lines))
        holder = {"": json.loads(lines[which])}
    except ValueError:
        return flip(draw, content)
    at: Any = holder
    while True:
        key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], dict | list) or not at[key] or draw.random() < 0.2:
            break
        at = at[key]
    if draw.random() < 0.2 and at is not holder:
        del at[key]
    else:
        at[key] = draw.choice(VALUES)
    lines[which] = json.dumps(holder[""]).encode()
    return gzip.compress(b"\n".join(lines)) if packed else b"\n".join(lines)


DAMAGES = (flip, cut, repeat, nest, swap_value, swap_value, swap_value)


class Originals:
    """Every kind as it was written once, and copied for each input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = [write(folder / f"{i}") for i, (write, _) in enumerate(KINDS)]

    def damaged(self, draw: random.Random) -> tuple[Path, Callable[[Path], object]]:
        kind = draw.randrange(len(KINDS))
        whole, copy = self.whole[kind], self.folder / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        target = copy / whole.name
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, target)
        files = sorted(path for path in target.rglob("*") if path.is_file()) or [target]
        for path in draw.sample(files, min(len(files), draw.randint(1, 2))):
            if draw.random() < 0.03:
                path.unlink()
            else:
                path.write_bytes(draw.choice(DAMAGES)(draw, path.read_bytes()) or b"")
        return target, KINDS[kind][1]


def fuzz(originals: Originals, first_seed: int, count: int) -> None:
    for seed in range(first_seed, first_seed + count):
        path, read = originals.damaged(random.Random(seed))
        began_s = time.process_time()
        try:
            read(path)
        except MetropolisError as error:
            try:
                assert_sentence(error, path if path.is_file() else path.parent, [])
            except AssertionError as unclear:
                raise AssertionError(f"seed {seed}: {unclear}") from error
        except Exception as error:
            raise AssertionError(f"seed {seed}: {path.name}: {error!r}") from error
        assert time.process_time() - began_s < INPUT_SECONDS_MAX, f"seed {seed}: {path.name}"


@pytest.fixture
def originals(tmp_path: Path) -> Originals:
    return Originals(tmp_path)


def test_originals_are_read(originals: Originals) -> None:
    for (_, read), path in zip(KINDS, originals.whole, strict=True):
        assert read(path)


def test_damage_is_read_or_refused_with_a_sentence(originals: Originals) -> None:
    fuzz(originals, 0, 400)


@pytest.mark.campaign
def test_campaign(originals: Originals) -> None:
    fuzz(originals, 1_000_000, CAMPAIGN_INPUTS)
