"""`metropolis reuse profile` as a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from metropolis.reuse.plan import load_plan
from metropolis.torch_engine import profiling
from tests.commands import Command, Ended
from tests.torch_engine.models import LAYERS
from tests.torch_engine.pairs import pair, tokenizer, write_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`base`, `chat` and `data.jsonl`; other models and data that do not fit them."""
    folder = tmp_path_factory.mktemp("pair")
    write_pair(folder)
    deep, _ = pair(num_hidden_layers=LAYERS + 1)
    short, _ = pair(max_position_embeddings=20)
    for name, model in (("deep", deep), ("short", short)):
        model.network.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    sender, _ = pair()
    sender.network.save_pretrained(folder / "alien")
    tokenizer(["?", "user", "w3", "assistant"]).save_pretrained(folder / "alien")
    (folder / "bad.jsonl").write_text('{"context": "c", "question": "q"}\n')
    return folder


@pytest.fixture
def run(metropolis: Command, folder: Path) -> Command:
    """Run the command with defaults for what is not given."""

    def profile(out: Path, *more: str, **changes: str) -> Ended:
        options = {"sender": "{}/base", "receiver": "{}/chat", "data": "{}/data.jsonl"} | changes
        given = [f"--{name}={value.format(folder)}" for name, value in options.items()]
        return metropolis("reuse", "profile", *given, f"--out={out}", *more)

    return profile


def test_a_plan_is_written_and_printed(run: Command, tmp_path: Path) -> None:
    out, figures = tmp_path / "plan.json", tmp_path / "figures"
    status, printed, errors = run(out, f"--figures={figures}", receiver="tuned={}/chat")
    assert (status, errors) == (0, "")
    plan = load_plan(out)
    assert (plan.sender, plan.receiver, plan.layers) == ("base", "tuned", LAYERS)
    assert (plan.metric, plan.data) == ("exact_match", "data.jsonl")
    assert plan.receiver_quality == 1
    fastest = plan.fastest(0.02)
    assert fastest is not None
    assert f"recompute {fastest.recompute[0]}, prefill {fastest.prefill_share:.3f}" in printed
    names = ("cache_differences", "pareto", "quality_by_layers", "quality_map")
    files = [f"{name}.{suffix}" for name in names for suffix in ("png", "svg")]
    assert sorted(path.name for path in figures.iterdir()) == files
    assert (figures / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_the_plan_and_all_that_was_measured(run: Command, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    status, printed, _ = run(out, "--json", "--metric=f1", "--loss=1")
    report = json.loads(printed)
    assert status == 0
    assert report["plan"] == json.loads(out.read_text())
    assert report["plan"]["metric"] == "f1"
    assert report["fastest"] == report["plan"]["points"][0]
    assert len(report["points"]) == 1 + LAYERS * (LAYERS + 1) // 2
    assert [*report["differences"][0]] == ["keys", "values", "inputs"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sender": "{}/gone"}, "is not a folder; write NAME=FOLDER or FOLDER"),
        ({"receiver": "base={}/chat"}, "sender and receiver are both named 'base'"),
        ({"receiver": "{}/deep"}, "cannot share caches: one has 5 layers"),
        ({"sender": "{}/alien"}, "their tokenizers should agree"),
        ({"receiver": "{}/short"}, "tokens; the models have 20 positions"),
        ({"data": "{}/gone.jsonl"}, "cannot be read"),
        ({"data": "{}/bad.jsonl"}, "line 1 is not an example"),
        ({"metric": "bleu"}, "'bleu' is not one of"),
        ({"out": "{}/gone/plan.json"}, "cannot be written (its folder does not exist)"),
        ({"device": "cuda"}, "cannot be moved to cuda"),
    ],
    ids=str,
)
def test_what_cannot_be_profiled_is_one_sentence(
    run: Command, tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    out = tmp_path / "plan.json"
    status, printed, errors = run(changes.pop("out", str(out)), **changes)
    assert (status, printed) == (2, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1
    assert not out.exists()


def test_torch_that_is_missing_is_one_sentence(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "metropolis.torch_engine.examples", None)
    status, _, errors = run(tmp_path / "plan.json")
    assert status == 2
    assert "pip install 'metropolis[torch]'" in errors


def test_an_interrupted_profile_leaves_the_former_plan(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(profiling, "layer_differences", interrupted)
    out = tmp_path / "plan.json"
    out.write_text("former")
    status, printed, errors = run(out, f"--figures={tmp_path / 'figures'}")
    assert (status, printed, errors.strip()) == (130, "", "metropolis: interrupted")
    assert out.read_text() == "former"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["figures", "plan.json"]
