"""Call logs: what a line means, and one sentence for a line that means nothing."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.importers.calls import import_calls, typical_tokens
from metropolis.trace.parquet import read_trace, write_trace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from tests.trace.damage import assert_same, assert_sentence, rich_trace
from tests.trace.recordings import walkers

MOVEMENT = walkers(0, 3, 20)


def log(path: Path, *lines: Any) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text)
    return path


@given(seed=st.integers(0, 2**32 - 1), shuffle=st.randoms())
@settings(max_examples=60, deadline=None)
def test_every_call_comes_back(
    seed: int, shuffle: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A trace's calls as JSON lines, in any order, packed or not, are imported equal."""
    trace = rich_trace(seed, 3, 6, mapped=False)
    calls = trace.calls
    offsets = trace.call_offsets()
    lines = []
    for i in range(len(calls)):
        first = offsets[calls.step[i] * trace.agents + calls.agent[i]]
        waited = calls.parents[calls.parent_offsets[i] : calls.parent_offsets[i + 1]]
        is_own = calls.agent[waited] == calls.agent[i]
        named = seed % 2
        lines.append(
            {
                "step": int(calls.step[i]),
                "agent": trace.meta.agents[calls.agent[i]] if named else int(calls.agent[i]),
                "seq": int(i - first),
                "kind" if named else "function": calls.functions[calls.function[i]],
                "parents": (waited[is_own] - first).tolist(),
                "other_parents": [
                    [
                        trace.meta.agents[calls.agent[j]] if named else int(calls.agent[j]),
                        int(j - offsets[calls.step[j] * trace.agents + calls.agent[j]]),
                    ]
                    for j in waited[~is_own]
                ],
                "model": calls.models[calls.model[i]],
                "input_tokens" if named else "prompt_tokens": int(calls.prompt_tokens[i]),
                "output_tokens": int(calls.output_tokens[i]),
                "prefix_id": int(calls.prefix_id[i]) if calls.prefix_id[i] >= 0 else None,
                "prefix_tokens": int(calls.prefix_tokens[i]),
                "prompt": calls.prompt[i] if calls.prompt is not None else None,
            }
        )
    shuffle.shuffle(lines)
    content = "\n".join(json.dumps(line) for line in lines).encode() + b"\n\n"
    path = tmp_path_factory.getbasetemp() / "calls.jsonl"
    path.write_bytes(gzip.compress(content) if seed % 3 == 0 else content)
    if lines:
        imported = import_calls(path, Trace(trace.meta, trace.positions, trace.calls))
        assert imported.meta.calls_origin == "recorded"
        assert_same(import_calls(path, imported), imported)
        derived = Trace(imported.meta, trace.positions, trace.calls)
        assert_same(imported, derived)


@pytest.mark.parametrize("csv", [False, True])
def test_every_id_of_64_bits_is_kept(csv: bool, tmp_path: Path) -> None:
    most = 2**63 - 1
    line = (
        f"step,agent,kind,prefix_id\n1,0,wake_up_hour,{most}" if csv else GOOD | {"prefix_id": most}
    )
    path = log(tmp_path / "log", line)
    assert import_calls(path, MOVEMENT).calls.prefix_id.tolist() == [most]


def test_attempts_are_calls_one_after_the_other(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.jsonl",
        {"step": 2, "agent": 0, "kind": "wake_up_hour", "attempts": 3},
        {"step": 2, "agent": 0, "kind": "daily_plan", "attempts": 2, "parents": []},
        {"step": 2, "agent": 0, "kind": "event_triple", "parents": [0, 1]},
    )
    trace = import_calls(path, MOVEMENT)
    calls = trace.calls
    parents = [
        calls.parents[calls.parent_offsets[i] : calls.parent_offsets[i + 1]].tolist()
        for i in range(len(calls))
    ]
    assert parents == [[], [0], [1], [], [3], [2, 4]]
    typical = typical_tokens()
    assert calls.prompt_tokens[0] == typical["wake_up_hour"][0]
    assert calls.output_tokens[-1] == typical["event_triple"][1]
    assert trace.meta.calls_origin == "derived"


def test_lengths_from_texts_and_characters(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.jsonl",
        {"step": 0, "agent": 0, "prompt": "x" * 41, "response": "yes"},
        {"step": 0, "agent": 1, "prompt_chars": 0, "out_chars": 8},
        {"step": 0, "agent": 2, "prompt": "eat?", "completion": ""},
    )
    calls = import_calls(path, MOVEMENT).calls
    assert calls.prompt_tokens.tolist() == [11, 1, 1]
    assert calls.output_tokens.tolist() == [1, 2, 1]
    assert calls.completion == ["yes", None, ""]
    assert calls.functions == ("call",)


def test_csv(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.csv",
        "agent,step,index,kind,parents,prompt_chars,response_chars,start_s",
        "Agent 2,7,1,talk,0,100,8,0.5",
        '"Agent 2",7,0,talk,,50,9,0.1',
        "0,3.0,0,talk,,4,4,0.2",
        "Agent 2,7,2,talk,0 1,4,4,0.9",
    )
    calls = import_calls(path, MOVEMENT).calls
    assert calls.step.tolist() == [3, 7, 7, 7]
    assert calls.agent.tolist() == [0, 2, 2, 2]
    assert calls.prompt_tokens.tolist() == [1, 13, 25, 1]
    assert calls.parents.tolist() == [1, 1, 2]


def test_empty_lines_are_skipped(tmp_path: Path) -> None:
    path = log(
        tmp_path / "log.csv", "step,agent,kind", "1,2,task_decomp", "", "1,1,task_decomp", ""
    )
    assert len(import_calls(path, MOVEMENT).calls) == 2


def test_a_header_alone_holds_no_calls(tmp_path: Path) -> None:
    imported = import_calls(log(tmp_path / "log.csv", "step,agent"), MOVEMENT)
    assert len(imported.calls) == 0
    write_trace(imported, tmp_path / "a.parquet")
    assert len(read_trace(tmp_path / "a.parquet").calls) == 0


GOOD = {"step": 1, "agent": "Agent 1", "prompt_tokens": 9, "output_tokens": 2}
DAMAGE: dict[str, tuple[list[Any], list[str]]] = {
    "empty": ([""], ["is empty"]),
    "unknown step": ([GOOD, GOOD | {"step": 20}], ["line 2", "step is 20", "0 to 19"]),
    "negative step": ([GOOD, GOOD | {"step": -1}], ["line 2", "step is -1"]),
    "no step": ([GOOD, {"agent": 0}], ["line 2", "step is missing"]),
    "no agent": ([GOOD, {"step": 1}], ["line 2", "agent is missing"]),
    "column twice": (["step,agent,step", "1,0,2"], ["line 1", "has the column 'step' twice"]),
    "lone surrogate": (
        ['{"step": 1, "agent": 0, "function": "\\ud800"}'], ["line 1", "a lone surrogate"],
    ),
    "step twice": (['{"step": 1, "step": 2, "agent": 0}'], ["line 1", "'step' occurs twice"]),
    "fractional step": ([GOOD | {"step": 1.5}], ["line 1", "step is 1.5", "whole"]),
    "unknown agent": ([GOOD | {"agent": "Zed"}], ["line 1", "agent is 'Zed'", "0 to 2"]),
    "unknown index": ([GOOD | {"agent": 3}], ["line 1", "agent is 3"]),
    "agent no name": ([GOOD | {"agent": [1]}], ["line 1", "agent is [1]"]),
    "no JSON": ([GOOD, GOOD, '{"step": 1, '], ["line 3", "not JSON"]),
    "no object": ([GOOD, "[1]"], ["line 2", "is list", "object"]),
    "no tokens": (
        [GOOD, {"step": 1, "agent": 0, "function": "mine", "output_tokens": 3}],
        ["line 2", "prompt_tokens is missing", "'mine'"],
    ),
    "zero tokens": ([GOOD | {"output_tokens": 0}], ["line 1", "output_tokens is 0", "at least 1"]),
    "negative tokens": ([GOOD | {"prompt_tokens": -9}], ["line 1", "prompt_tokens is -9"]),
    "text tokens": ([GOOD | {"prompt_tokens": "many"}], ["line 1", "prompt_tokens is 'many'"]),
    "huge tokens": ([GOOD | {"prompt_tokens": 2**40}], ["line 1", "prompt_tokens is"]),
    "long prefix": ([GOOD | {"prefix_tokens": 10}], ["line 1", "prefix_tokens is 10", "0 to 9"]),
    "unknown parent": (
        [GOOD, GOOD | {"parents": [4]}], ["line 2", "parents has 4", "earlier", "0 to 0"]
    ),
    "own parent": ([GOOD | {"parents": [0]}], ["line 1", "parents has 0", "none"]),
    "parents no list": ([GOOD | {"parents": 0}], ["line 1", "parents is 0", "list"]),
    "other parents no pairs": (
        [GOOD | {"other_parents": [0]}],
        ["line 1", "other_parents is [0]", "pairs of an agent and a call number"],
    ),
    "other parents of nobody": (
        [GOOD | {"other_parents": [["Zoe", 0]]}], ["line 1", "agent is 'Zoe'"]
    ),
    "other parents of none": (
        [GOOD | {"other_parents": [[1, 0]]}],
        ["line 1", "other_parents has call 0 of agent 1", "other agents in this step"],
    ),
    "no attempts": ([GOOD | {"attempts": 0}], ["line 1", "attempts is 0"]),
    "function no text": ([GOOD | {"function": 5}], ["line 1", "function is 5"]),
    "CSV with spaces": (["step, agent", "0, talk"], ["line 1", "field ' agent'", "not agent"]),
    "CSV without step": (["agent,kind", "0,talk"], ["line 1", "column step is missing"]),
    "CSV short row": (["step,agent,kind", "1,2,task_decomp", "1,2"], ["line 3", "2 fields", "3"]),
    "CSV quote": (["step,agent,kind", '1,2,"talk'], ["line 2", "not CSV"]),
    "CSV unknown step": (["step,agent,kind", "x,2,talk"], ["line 2", "step is 'x'"]),
    "CSV slip": (
        ["step,agent,promt_tokens", "1,2,77"],
        ["line 1", "unknown field 'promt_tokens'; if it is not prompt_tokens, rename it"],
    ),
    "slip": ([GOOD, GOOD | {"parent": [0]}], ["line 2", "unknown field 'parent'", "parents"]),
    "CSV with semicolons": (["step;agent", "1;2"], ["line 1", "separated by ';'", "commas"]),
    "two names": (
        [GOOD | {"prompt_tokens": 10, "input_tokens": 9999}],
        ["line 1", "prompt_tokens is 10 and input_tokens is 9999", "both name the same field"],
    ),
    "array": (['[{"step": 1, "agent": 0}]'], ["is a JSON array", "one object a line"]),
    "no JSON at the end": ([GOOD, '{"step": 1'], ["line 2", "not JSON (Expecting ',' del", "at c"]),
    "huge step": (["step,agent", f"{10**20},0"], ["line 2", "a whole number below 2,147,483,648"]),
    "huge prefix id": ([GOOD | {"prefix_id": 2**63}], ["line 1", "below 9,223,372,036,854,"]),
    "negative prefix id": ([GOOD | {"prefix_id": -1}], ["line 1", "prefix_id is -1", "at least 0"]),
    "negative chars": (
        [{"step": 1, "agent": 0, "function": "task_decomp", "output_tokens": 3, "in_chars": -5}],
        ["line 1", "prompt_chars is -5", "at least 0"],
    ),
    "CSV parents": (
        ["step,agent,kind,parents", "1,2,talk,a"], ["line 2", "parents is 'a'"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_gets_one_sentence(kind: str, tmp_path: Path) -> None:
    lines, expected = DAMAGE[kind]
    path = log(tmp_path / "log", *lines)
    with pytest.raises(MetropolisError) as caught:
        import_calls(path, MOVEMENT)
    assert_sentence(caught.value, path, expected)


def test_agents_whose_names_are_numbers_have_no_index(tmp_path: Path) -> None:
    movement = replace(MOVEMENT, meta=replace(MOVEMENT.meta, agents=("1", "2", "x")))
    for lines in (
        ["step,agent,prompt_tokens,output_tokens", "1,1,9,2", "1,x,9,2"],
        [GOOD | {"agent": 1}, GOOD | {"agent": "x"}],
        [GOOD | {"agent": 1.0}, GOOD | {"agent": "x"}],
    ):
        calls = import_calls(log(tmp_path / "log", *lines), movement).calls
        assert [movement.meta.agents[agent] for agent in calls.agent] == ["1", "x"]
    with pytest.raises(MetropolisError, match=r"agent is 0; it should be a name in the movement$"):
        import_calls(log(tmp_path / "log", GOOD | {"agent": 0}), movement)


FIELDS = [
    "step", "agent", "seq", "kind", "parents", "attempts", "prompt", "prompt_tokens",
    "output_tokens", "out_chars", "prefix_id", "prefix_tokens", "model",
]  # fmt: skip
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(-1, 2), max_size=2)
)


@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3), min_size=1, max_size=3
    )
)
@settings(max_examples=300, deadline=None)
def test_any_values_make_calls_or_a_sentence(
    lines: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = log(tmp_path_factory.getbasetemp() / "any.jsonl", *(GOOD | line for line in lines))
    try:
        calls = import_calls(path, MOVEMENT).calls
        assert (np.diff(calls.step) >= 0).all()
    except MetropolisError as error:
        assert_sentence(error, path, [])
