"""`metropolis trace import` and `info`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from metropolis.trace.parquet import read_trace, write_trace
from tests.commands import Command
from tests.maps.test_map import matrices
from tests.trace import recordings
from tests.trace.damage import rich_trace


@pytest.fixture
def trace(metropolis: Command) -> Command:
    """Run `metropolis trace …`."""
    return partial(metropolis, "trace")


def test_import_then_info(trace: Command, tmp_path: Path) -> None:
    walkers = recordings.walkers(0, 3, 720)
    walkers.positions[100:, 0] = walkers.positions[99, 0] + (3, 0)
    path = recordings.tracks(walkers, tmp_path)
    calls = tmp_path / "calls.jsonl"
    calls.write_text(
        "\n".join(
            json.dumps({"step": s, "agent": 1, "kind": "plan", "prompt_tokens": 60 + s,
                        "output_tokens": 2})
            for s in (0, 0, 400)
        )
    )  # fmt: skip
    out = tmp_path / "out.parquet"
    out.write_text("an older file")
    printed = trace(
        "import", path, "--calls", calls, "--radius", 4, "--step-seconds", 10, "--start", "06:30",
        "--jumps", "clamp", "--out", out,
    ).result  # fmt: skip
    assert "3 agents, 720 steps, 3 calls; jumps clamped: 2 agent-steps changed" in printed
    told = json.loads(trace("info", out, "--json").result)
    assert told["agents"] == 3
    assert told["steps"] == 720
    assert told["hours"] == 2
    assert told["calls"] == 3
    assert told["calls_per_active_step_mean"] == 1.5
    assert told["calls_per_hour"] == {"6": 2, "7": 1, "8": 0}
    assert told["functions"] == [
        {"function": "plan", "calls": 3, "prompt_tokens_mean": pytest.approx(580 / 3),
         "output_tokens_mean": 2.0}
    ]  # fmt: skip
    printed = trace("info", out).result
    for part in ("3 x 720", "2.00 h", "plan", "7-8"):
        assert part in printed


def test_info_counts_walks(trace: Command, tmp_path: Path) -> None:
    whole = rich_trace(3, 2, 6, mapped=True)
    positions = whole.positions.copy()
    positions[:, 0] = [(1, 1), (2, 1), (3, 1), (3, 1), (3, 2), (3, 2)]
    positions[:, 1] = (5, 5)
    write_trace(replace(whole, positions=positions), tmp_path / "a.parquet")
    told = json.loads(trace("info", tmp_path / "a.parquet", "--json").result)
    assert (told["walks"], told["walk_steps_median"]) == (2, 1.5)
    assert told["stationary_share"] == pytest.approx(0.7)
    assert told["map"] == "plain"
    assert told["calls"] == sum(f["calls"] for f in told["functions"])


def test_info_tells_what_prompts_have(trace: Command, tmp_path: Path) -> None:
    whole = rich_trace(3, 2, 6, mapped=True)
    calls = whole.calls
    some = np.arange(len(calls)) % 3
    texts = ["a text" if one else None for one in some.tolist()]
    shared = np.where(some == 2, calls.prompt_tokens, 0).astype(np.int32)
    calls = replace(calls, prompt=texts, prefix_tokens=shared)
    write_trace(replace(whole, calls=calls, dependencies=None), tmp_path / "a.parquet")
    told = json.loads(trace("info", tmp_path / "a.parquet", "--json").result)
    counts = np.count_nonzero(some), np.count_nonzero(shared)
    assert (told["texts"], told["prefixes"], told["has_values"]) == (*counts, False)
    printed = trace("info", tmp_path / "a.parquet").result
    assert f"{counts[0]} with text, {counts[1]} with a shared prefix" in printed


def test_names_are_printed_as_they_are(trace: Command, tmp_path: Path) -> None:
    whole = rich_trace(3, 2, 6, mapped=True)
    name = "[/b] :smile: \x1b[2J"
    meta = replace(whole.meta, name=name, source="[red]\x9b1m", agents=("[", "]"))
    calls = replace(whole.calls, functions=("[/b]", ":smile:\x1b[2J"))
    write_trace(replace(whole, meta=meta, calls=calls), tmp_path / "a.parquet")
    printed = trace("info", tmp_path / "a.parquet").result
    assert printed.count("[/b]") == 2
    assert printed.count(":smile:") == 2
    assert printed.count(r"\x1b[2J") == 2
    assert r"[red]\x9b1m" in printed
    assert not {"\x1b", "\x9b"} & set(printed)


def test_import_with_a_map(trace: Command, tmp_path: Path) -> None:
    walkers = recordings.walkers(0, 1, 3)
    walkers.positions[:] = (1, 1)
    path = recordings.master(walkers, tmp_path)
    out = tmp_path / "out.parquet"
    folder = matrices(tmp_path / "matrix")
    arguments = ("import", path, "--radius", 4, "--map", folder, "--out", out)
    assert trace(*arguments).result
    found = read_trace(out).meta.map
    assert found is not None
    assert found.arena_names[1] == "Hobbs Cafe: cafe"
    walkers.positions[:] = (0, 0)
    recordings.master(walkers, tmp_path)
    assert re.search(r"step 0, agent 'Agent 0': .* is a wall", trace(*arguments).refusal)


def test_out_is_checked_before_the_work(trace: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_trace(rich_trace(3, 2, 6, mapped=True), path)
    link = tmp_path / "link"
    link.symlink_to(path)
    for arguments in (
        ("import", path, "--radius", 4),
        ("import", "none", "--radius", 4, "--calls", path),
        ("generate", "--movement", link),
        ("tile", tmp_path / "none", path, "--copies", 2),
    ):
        assert "a.parquet: is read as input" in trace(*arguments, "--out", path).refusal
        for out in (tmp_path, path / "b", tmp_path / "none" / "b"):
            assert "cannot be written" in trace(*arguments, "--out", out).refusal


def test_out_is_no_file_of_a_run(trace: Command, tmp_path: Path) -> None:
    write_trace(rich_trace(3, 2, 6, mapped=True), tmp_path / "trace.parquet")
    (tmp_path / "calls").mkdir()
    for name in ("run.json", "journal.jsonl", "calls/1.jsonl.gz", "mine.parquet"):
        (tmp_path / name).write_text("{}")
    for name in ("run.json", "journal.jsonl", "calls/1.jsonl.gz", "trace.parquet"):
        said = "is read as input" if name == "run.json" else "belongs to the run in"
        refusal = trace("tile", tmp_path, "--copies", 2, "--out", tmp_path / name).refusal
        assert f"{name}: {said}" in refusal
    for name in ("mine.parquet", "new.parquet"):
        assert trace("tile", tmp_path, "--copies", 2, "--out", tmp_path / name).result


def test_out_is_no_file_of_a_folder_that_is_read(trace: Command, tmp_path: Path) -> None:
    folder = recordings.environment(recordings.walkers(0, 2, 3), tmp_path)
    arguments = ("import", folder, "--radius", 4, "--out")
    refusal = trace(*arguments, folder / "environment" / "1.json").refusal
    assert "1.json: is read as input" in refusal
    for _ in range(2):
        assert trace(*arguments, folder / "a.parquet").result


def test_bad_input_is_one_sentence_and_status_2(trace: Command, tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no more")
    path = recordings.tracks(recordings.walkers(0, 2, 3), tmp_path)
    out = tmp_path / "out.parquet"
    for arguments, part in (
        (["info", broken], "not an intact Parquet file"),
        (["info", tmp_path], "is a folder"),
        (["import", path, "--out", out], "--radius"),
        (["import", path, "--radius", "4", "--start", "dawn", "--out", out], "--start is 'dawn'"),
        (["import", path, "--radius", "4", "--start", "06:00+01:00", "--out", out], "no time zone"),
        (["import", tmp_path / "none", "--radius", "4", "--out", out], "cannot be read"),
        (["import", path, "--radius", "-1", "--out", out], "'--radius': -1.0 is not in the range"),
        (["import", path, "--velocity", "1e9", "--out", out], "value for '--velocity': 1000000000"),
        (["import", path, "--step-seconds", "0", "--out", out], "'--step-seconds': 0.0 is not in"),
        (["import", path, "--metric", "euclid", "--out", out], "did you mean 'euclidean'?"),
    ):
        refusal = trace(*arguments).refusal
        assert refusal.startswith("metropolis: ")
        assert refusal.count("\n") == 1
        assert part in refusal
    assert not out.exists()


def test_generated_calls_have_the_models_that_are_named(trace: Command, tmp_path: Path) -> None:
    out, models = tmp_path / "out.parquet", ("--model", "base", "--model", "event_poignancy=rate")
    options = ("generate", "--agents", 3, "--hours", "7-7.5", *models, "--out", out)
    assert trace(*options).result
    calls = read_trace(out).calls
    assert set(calls.models) == {"base", "rate"}
    for function, model in zip(calls.function, calls.model, strict=True):
        rates = calls.functions[function] == "event_poignancy"
        assert calls.models[model] == ("rate" if rates else "base")
    refusal = trace(*options, "--model", "event_poignanc=rate").refusal
    assert "did you mean 'event_poignancy'" in refusal
