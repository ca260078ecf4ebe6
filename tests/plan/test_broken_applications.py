"""Broken files of applications end in a sentence, and in no other error."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from metropolis.plan.application_file import LoadedApplication, read_application
from metropolis.plan.comparison import compare
from metropolis.plan.sources import read_items
from metropolis.types import MetropolisError

WHOLE: dict[str, Any] = {
    "name": "app",
    "machine": {
        "gpus": 4,
        "gpu": "a100-80g",
        "tp_max": 2,
        "loading": {"s_per_gb": 1.0},
        "loading_s": {"mpt-7b tp1": 3.0},
        "overhead": {"iteration_ms": 0.1, "sequence_ms": 0.01},
    },
    "models": {
        "small": {
            "parameters": 0.5, "layers": 24, "hidden": 896, "heads": 14, "kv_heads": 2,
            "context_tokens": 4096,
        },
        "mpt-7b": {"profiles": {"1": "own.toml/one"}},
    },
    "sources": {
        "s": {"file": "items.jsonl"},
        "t": {"count": 3, "tokens": [5, 9], "parts": [1, 2], "output_tokens": 4},
    },
    "nodes": {
        "n": {"model": "small", "inputs": ["t"], "chain": True, "template": "{t} {previous}"},
        "k": {"model": "mpt-7b", "inputs": ["n", "t"], "lengths": "l", "times": 2},
        "j": {"model": "small", "inputs": "s", "join": "each", "max_tokens": 5},
    },
    "lengths": {"l": {"values": [5, 6]}, "small": {"file": "lengths.json", "name": "l"}},
    "engines": {"small": {"command": "x {port}"}},
}  # fmt: skip
NAMES = st.sampled_from(
    ["s", "t", "n", "k", "j", "l", "file", "count", "trace", "values", "", "a b", "1", "model"]
)
VALUES = st.recursive(
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.sampled_from([0, 1, 2, 63, 4096, 1 << 20, 1 << 22, 9_999_999, True, False]),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
        st.sampled_from(["s", "t", "n", "k", "previous", "{s}", "{", "\0", "own.toml", "."]),
        st.sampled_from(["own.toml/two", "items.jsonl", "x" * 300, date(2026, 1, 1)]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)


def as_toml(value: Any) -> str:
    match value:
        case dict():
            fields = (f"{json.dumps(name)} = {as_toml(each)}" for name, each in value.items())
            return f"{{{', '.join(fields)}}}"
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bool():
            return str(value).lower()
    return str(value)


@st.composite
def broken_files(draw: st.DrawFn) -> str:
    """A whole file with up to two changes, anywhere."""
    content = json.loads(json.dumps(WHOLE))
    for _ in range(draw(st.integers(1, 2))):
        table = content
        while True:
            below = [name for name, value in table.items() if isinstance(value, dict) and value]
            name = draw(st.sampled_from([*below, None]))
            if name is None:
                break
            table = table[name]
        if not table:
            continue
        change = draw(st.sampled_from(["remove", "replace", "add", "number"]))
        name = draw(NAMES if change == "add" else st.sampled_from(sorted(table)))
        if change == "remove":
            del table[name]
        elif change != "number":
            table[name] = draw(VALUES)
        elif isinstance(table[name], int | float):
            table[name] = draw(st.integers(0, 100) | st.integers(0, 1 << 22))
    return "\n".join(f"{json.dumps(name)} = {as_toml(value)}" for name, value in content.items())


def planned(loaded: LoadedApplication) -> str:
    """Plan; the sentence with which that is refused, or an empty text."""
    if sum(map(len, loaded.application.requests().values())) < 300:
        try:
            compare(loaded, ["min-no-preemption"], 1, 0)
        except MetropolisError as error:
            return f"{error}"
    return ""


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(broken_files())
def test_a_broken_file_ends_in_a_sentence(folder: Path, text: str) -> None:
    """What can be read can be planned."""
    path = folder / "app.toml"
    path.write_text(text)
    try:
        loaded = read_application(path)
    except MetropolisError as error:
        sentence = f"{error}"
        event("refused")
    else:
        event("read")
        sentence = planned(loaded)
    assert re.search(r"app\.toml|items\.jsonl|^$", sentence), sentence


@FUZZ
@given(st.data())
def test_bytes_of_a_file_that_change_end_in_a_sentence(folder: Path, data: st.DataObject) -> None:
    whole = "\n".join(f"{name} = {as_toml(value)}" for name, value in WHOLE.items()).encode()
    lines = (folder / "items.jsonl").read_bytes()
    for name, content in (("app.toml", whole), ("mutated.jsonl", lines)):
        changed = bytearray(content)
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        (folder / name).write_bytes(changed.replace(b"items.jsonl", b"mutated.jsonl"))
    try:
        read_application(folder / "app.toml")
    except MetropolisError:
        return


def test_endless_files_end_in_a_sentence(folder: Path) -> None:
    path = folder / "app.toml"
    for text in (f"x = {'[' * 9999}", f"x = {'9' * 9999}", 'name = "\0"'):
        path.write_text(text)
        with pytest.raises(MetropolisError, match=r"app\.toml is not a TOML file"):
            read_application(path)
    (folder / "items.jsonl").write_text("[" * 99999)
    with pytest.raises(MetropolisError, match="line 1"):
        read_items(folder / "items.jsonl")
