"""Applications in TOML files: what is read, and what is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis.llm.base import Completion
from metropolis.llm.journal import Journal, Key
from metropolis.plan.application import Item, Node
from metropolis.plan.application_file import EngineTable, read_application
from metropolis.plan.machine import ExecutionPlan
from metropolis.trace.parquet import write_trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace

HEAD = 'name = "app"\n'
TAIL = '[nodes.n]\nmodel = "mpt-7b"\ninputs = "s"\nlengths = "l"\n[lengths.l]\nvalues = [5]\n'
SOURCE = "[sources.s]\ncount = 2\ntokens = 9\n"


def read(folder: Path, text: str) -> Any:
    path = folder / "app.toml"
    path.write_text(text)
    return read_application(path)


def items(folder: Path, source: str) -> tuple[Item, ...]:
    return read(folder, HEAD + f"[sources.s]\n{source}\n" + TAIL).application.sources["s"]


def test_a_file_of_items(folder: Path) -> None:
    assert items(folder, 'file = "items.jsonl"') == (
        Item("a", ("one two",), (7,)),
        Item("b", ("three", 4), (8, 9)),
        Item("5", (21,)),
    )


def test_drawn_items_lie_within_their_bounds_and_follow_the_seed(folder: Path) -> None:
    source = "count = 40\ntokens = [5, 127]\nparts = [1, 3]\noutput_tokens = [2, 4]"
    first, again = items(folder, source), items(folder, source)
    other = items(folder, source + "\nseed = 1")
    assert first == again != other
    assert {len(item.parts) for item in first} == {1, 2, 3}
    parts = [part for item in first for part in item.parts]
    assert min(parts) >= 5  # type: ignore[type-var]
    assert max(parts) <= 127  # type: ignore[type-var]
    assert {tokens for item in first for tokens in item.output_tokens or ()} == {2, 3, 4}


def test_the_calls_of_a_trace(folder: Path) -> None:
    trace = small_trace(1, agents=3, steps=8, edge=5, radius=2)
    write_trace(trace, folder / "x.parquet")
    calls = trace.calls
    function = calls.functions[0]
    found = items(folder, f'trace = "x.parquet"\nfunction = "{function}"')
    rows = np.flatnonzero(calls.function == 0).tolist()
    assert [item.key for item in found] == [str(row) for row in rows]
    for item, row in zip(found, rows, strict=True):
        text = calls.prompt and calls.prompt[row]
        assert item.parts == (text or int(calls.prompt_tokens[row]),)
        assert item.output_tokens == (int(calls.output_tokens[row]),)
    with pytest.raises(
        MetropolisError, match=r"\[sources.s\] trace: there is no function 'x'; there are"
    ):
        items(folder, 'trace = "x.parquet"\nfunction = "x"')


def test_all_fields_of_a_node(folder: Path) -> None:
    table = """[nodes.n]
    model = "mpt-7b"
    inputs = ["s", "k"]
    template = "{s}{k}"
    join = "each"
    results = "all"
    times = 3
    max_tokens = 4
    lengths = "l"
    [nodes.k]
    model = "mpt-7b"
    inputs = "s"
    chain = true
    [lengths.l]
    values = [5]
    [lengths.mpt-7b]
    values = [6]
    """
    loaded = read(folder, HEAD + SOURCE + table)
    assert loaded.application.nodes == (
        Node("n", "mpt-7b", ("s", "k"), "{s}{k}", "each", False, "all", 3, 4, "l"),
        Node("k", "mpt-7b", ("s",), chain=True),
    )
    assert {name: each.mean for name, each in loaded.lengths.items()} == {"l": 5, "mpt-7b": 6}


def test_lengths_from_files(folder: Path) -> None:
    trace = small_trace(1, agents=3, steps=8, edge=5, radius=2)
    write_trace(trace, folder / "x.parquet")
    function = trace.calls.functions[0]
    journal = Journal(folder / "journal.jsonl", "run")
    journal.put(Key(0, 0, "talk", "", 0), Completion("text", 3, 11, "stop"))
    journal.close()
    tables = f"""
    [lengths.other]
    file = "lengths.json"
    [lengths.named]
    file = "lengths.json"
    name = "l"
    [lengths.traced]
    trace = "x.parquet"
    function = "{function}"
    [lengths.recorded]
    journal = "journal.jsonl"
    function = "talk"
    """
    lengths = read(folder, HEAD + SOURCE + TAIL + tables).lengths
    assert lengths["other"].observed.tolist() == [3]
    assert lengths["named"].observed.tolist() == [1, 2]
    assert lengths["recorded"].observed.tolist() == [11]
    traced = trace.calls.output_tokens[trace.calls.function == 0]
    assert lengths["traced"].observed.tolist() == sorted(traced.tolist())


def test_a_machine_with_its_own_models(folder: Path) -> None:
    tables = """
    [machine]
    gpus = 4
    tp_max = 2
    [machine.loading]
    s_per_gb = 2.0
    [machine.loading_s]
    "mpt-7b tp2" = 3
    [machine.overhead]
    iteration_ms = 0.5
    [models.small]
    parameters = 0.5
    layers = 24
    hidden = 896
    heads = 14
    kv_heads = 2
    context_tokens = 4096
    [models.mpt-7b.profiles]
    1 = "own.toml/one"
    2 = "own.toml/two"
    4 = "own.toml/two"
    [engines.mpt-7b]
    command = "stub"
    """
    loaded = read(folder, HEAD + SOURCE + TAIL + tables)
    machine = loaded.machine
    assert (machine.gpus, machine.loading.s_per_gb) == (4, 2.0)
    plans = [*((dp, 1) for dp in range(1, 5)), (1, 2), (2, 2)]
    assert set(machine.plans("mpt-7b")) == {ExecutionPlan(*plan) for plan in plans}
    assert machine.load_s("mpt-7b", ExecutionPlan(1, 2)) == 3
    assert machine.load_s("mpt-7b", ExecutionPlan(2, 2)) == 3 + machine.loading.copy_s
    profile = machine.profile("mpt-7b", 2)
    assert (profile.w_ms, profile.h_ms, profile.kv_capacity_tokens) == (6.5, 2.5, 30000)
    assert {plan.tp for plan in machine.plans("small")} == {1, 2}
    assert loaded.engines == {"mpt-7b": EngineTable("stub")}


VALID = SOURCE + TAIL
NODE = HEAD + SOURCE + "[nodes.n]\n"
FAULTS = {
    "app.toml: lacks the field 'name'": VALID,
    "app.toml: there is no field 'node' (did you mean 'nodes'?)": HEAD + "[node.x]\n",
    "app.toml: sources: should be a table, [sources]": HEAD + "sources = 1\n" + TAIL,
    "app.toml: [sources] s: should be a table, [sources.s]": HEAD + "[sources]\ns = 1\n" + TAIL,
    "app.toml: name: expected a text, got a whole number": "name = 1\n" + VALID,
    "[nodes.n] there is no field 'modl' (did you mean 'model'?)": NODE + "modl = 1\n",
    "[nodes.n] lacks the field 'model'": NODE + 'inputs = "s"\n',
    "[nodes.n] times: expected a whole number, got a text": NODE
    + 'model = "m"\ninputs = "s"\ntimes = "x"\n',
    "[nodes.n] join: should be one of concatenate, each": NODE
    + 'model = "m"\ninputs = "s"\njoin = "x"\n',
    "[nodes.n] model: there is no model 'mpt' (did you mean 'mpt-7b'?)": HEAD
    + VALID.replace("mpt-7b", "mpt"),
    "[nodes.n] model: 1 x a100-80g cannot hold llama-3-70b": HEAD
    + "[machine]\ngpus = 1\n"
    + VALID.replace("mpt-7b", "llama-3-70b"),
    "app.toml: app: the node 'n': inputs: there is no source or node 's'": HEAD + TAIL,
    "[nodes.n] lengths: no output_tokens: there is no distribution of output lengths 'k'": HEAD
    + VALID.replace('"l"', '"k"'),
    "[nodes.n] lengths: no output_tokens: there is no distribution of output lengths 'mpt-7b'": HEAD
    + VALID.replace('lengths = "l"\n', ""),
    "[sources.s] has none of the fields; write exactly one of file, count, trace": HEAD
    + "[sources.s]\n",
    "[sources.s] has file and count; write exactly one of": HEAD + SOURCE + 'file = "x"\n',
    "no.jsonl does not exist; paths are relative to": HEAD + '[sources.s]\nfile = "no.jsonl"\n',
    "[sources.s] tokens: is [9, 5]; write a number in [1, 4194304], or": HEAD
    + "[sources.s]\ncount = 2\ntokens = [9, 5]\n",
    "[sources.s] tokens: expected a list of length 2, got 1": HEAD
    + "[sources.s]\ncount = 2\ntokens = [9]\n",
    "[sources.s] count: expected a whole number >= 1": HEAD
    + "[sources.s]\ncount = -1\ntokens = 9\n",
    "[sources.s] count: expected a whole number <= 1048576": HEAD
    + "[sources.s]\ncount = 10_000_001\ntokens = 9\n",
    "the node 'n': times is 10000001; it must lie in [1, 4194304]": HEAD
    + VALID.replace("[lengths.l]", "times = 10_000_001\n[lengths.l]"),
    "[lengths.l] values: output lengths must be whole numbers of tokens in [1,": HEAD
    + VALID.replace("[5]", "[5, 0]"),
    "[lengths.k] file: lengths.json: there is no distribution of output lengths 'k'": HEAD
    + VALID
    + '[lengths.k]\nfile = "lengths.json"\n',
    "[lengths.k] lacks model, function or both": HEAD + VALID + '[lengths.k]\ntrace = "x"\n',
    "[machine] there is no GPU 'a100' (did you mean 'a100-80g'?)": HEAD
    + '[machine]\ngpu = "a100"\n',
    "[machine] gpus is 0; a machine has 1 to 64": HEAD + "[machine]\ngpus = 0\n",
    "[machine.loading_s] mpt-7b: should be a model and a TP degree, like": HEAD
    + "[machine.loading_s]\nmpt-7b = 3\n",
    "[machine.loading_s] mpt tp1: there is no model 'mpt'": HEAD
    + '[machine.loading_s]\n"mpt tp1" = 3\n',
    "[machine.loading] most_s: expected a number <= 10000000.0": HEAD
    + "[machine.loading]\nmost_s = inf\n",
    "[machine.loading_s] mpt-7b tp1: expected a number >= 0.0": HEAD
    + '[machine.loading_s]\n"mpt-7b tp1" = -1\n',
    "[sources.s] seed: expected a whole number >= 0": HEAD + SOURCE + "seed = -1\n",
    "[models.x] lacks the field 'parameters'": HEAD + "[models.x]\n",
    "[models.x.profiles] 1: there is no profile 'y/z'": HEAD + '[models.x.profiles]\n1 = "y/z"\n',
    "[models.x.profiles] one: should be a number of GPUs": HEAD
    + '[models.x.profiles]\none = "y/z"\n',
    "[engines.mpt] there is no model of this application 'mpt' (did you mean": HEAD
    + VALID
    + "[engines.mpt]\n",
    "[engines.mpt-7b] command: expected a text, got a whole number": HEAD
    + VALID
    + "[engines.mpt-7b]\ncommand = 1\n",
    "[engines.mpt-7b] there is no field 'pth' (did you mean 'path'?)": HEAD
    + VALID
    + '[engines.mpt-7b]\npth = "x"\n',
    "[models.x.profiles] 1: expected a text, got a whole number": HEAD
    + "[models.x.profiles]\n1 = 2\n",
    "[models.x] 9 heads are more than hidden = 8": HEAD
    + "[models.x]\nparameters = 1\nlayers = 1\nhidden = 8\nheads = 9\nkv_heads = 1\n"
    + "context_tokens = 9\n",
    "[lengths.l] values: output lengths must be whole numbers of tokens in [1, 4194304]": HEAD
    + VALID.replace("[5]", "[5, 4194305]"),
    "\0 does not exist": HEAD + '[sources.s]\nfile = "\\u0000"\n',
    "xxx does not exist": HEAD + f'[sources.s]\nfile = "{"x" * 300}"\n',
    "is not a TOML file": "name =\n",
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_a_fault_is_one_sentence(folder: Path, sentence: str) -> None:
    with pytest.raises(MetropolisError) as caught:
        read(folder, FAULTS[sentence])
    assert sentence in f"{caught.value}"
    assert "\n" not in f"{caught.value}"
    assert f"{caught.value}".count(f"{folder / 'app.toml'}: ") <= 1


def test_a_prompt_that_is_too_long_is_one_sentence(folder: Path) -> None:
    loaded = read(folder, HEAD + SOURCE.replace("9", "4096") + TAIL)
    with pytest.raises(MetropolisError) as caught:
        loaded.workload(0)
    assert f"{caught.value}" == (
        f"{folder / 'app.toml'}: the node 'n': request 0 has a prompt of 4,096 tokens; it should "
        "be shorter than the context of mpt-7b, 2,048"
    )


LINES = {
    '{"key": "x"}': "has none of the fields text, tokens and parts",
    '{"text": "x", "tokens": 1}': "has 2 of the fields",
    '{"txt": "x"}': "there is no field 'txt' (did you mean 'text'?)",
    '{"tokens": "x"}': "Expected `int | null`, got `str`",
    "[]": "is not a JSON object",
    "{": "Input data was truncated",
    '{"key": "a", "text": "x"}': "the key 'a' repeats that of line 1",
}


def test_items_after_a_byte_order_mark(folder: Path) -> None:
    (folder / "items.jsonl").write_text('{"key": "a", "text": "x"}\n', encoding="utf-8-sig")
    (item,) = items(folder, 'file = "items.jsonl"')
    assert (item.key, item.parts) == ("a", ("x",))


@pytest.mark.parametrize("line", LINES)
def test_a_bad_line_is_named(folder: Path, line: str) -> None:
    (folder / "items.jsonl").write_text('{"key": "a", "text": "x"}\n' + line)
    with pytest.raises(MetropolisError) as caught:
        items(folder, 'file = "items.jsonl"')
    assert "items.jsonl, line 2: " in f"{caught.value}"
    assert LINES[line] in f"{caught.value}"
