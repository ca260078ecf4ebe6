"""The example that makes a pair: its files, not what the models learn."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click.testing
import pytest
import torch

from metropolis.torch_engine.examples import load_examples, tokenize
from metropolis.torch_engine.model import require_variants
from metropolis.torch_engine.weights import load_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "droidspeak_pair"
FILES = ("base/model.safetensors", "receiver/model.safetensors", "profile.jsonl", "test.jsonl")


def make(folder: Path, seed: int = 0) -> str:
    """Make a small pair; returns what was printed."""
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLE))
    try:
        command = runpy.run_path(str(EXAMPLE / "make.py"))["main"]
        result = click.testing.CliRunner().invoke(
            command, [str(folder), "--small", "--seed", str(seed)], catch_exceptions=False
        )
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in {"story", "training", "folder"} - before:
            sys.modules.pop(name, None)
    assert result.exit_code == 0
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "pair"
    printed = make(folder)
    assert "base" in printed
    assert "receiver" in printed
    return folder


def test_equal_seeds_make_equal_files(folder: Path, tmp_path: Path) -> None:
    make(tmp_path / "same")
    make(tmp_path / "other", seed=1)
    for name in FILES:
        content = (folder / name).read_bytes()
        assert content == (tmp_path / "same" / name).read_bytes()
        assert content != (tmp_path / "other" / name).read_bytes()


def test_a_story_as_system_message_is_a_prefix_of_the_prompt(folder: Path) -> None:
    """The same tokens as in the profile, also after an answer."""
    base, receiver = (load_model(name, folder / name) for name in ("base", "receiver"))
    require_variants([base, receiver])
    told = load_examples(folder / "profile.jsonl")
    data = tokenize(told, base, receiver, "here")
    tokenizer = receiver.tokenizer
    for example, passage in ((told[0], data.passages[0]), (told[-1], data.passages[-1])):
        question = {"role": "user", "content": example.question}
        messages = [{"role": "system", "content": example.context}, question]
        tokens = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        assert passage.context.tolist() == tokens[:-3]
        assert passage.context.tolist() == tokenizer.encode(example.context)
        assert tokens[-3:] in [one.tokens.tolist() for one in passage.questions]
        messages += [{"role": "assistant", "content": example.answer}, question]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        asked = f"{example.question} {example.answer} . {example.question}"
        assert text.split() == f"{example.context} {asked}".split()
    assert receiver.end_tokens == {tokenizer.convert_tokens_to_ids(".")}


def test_the_test_asks_about_other_stories(folder: Path) -> None:
    profiled, tested = (load_examples(folder / f"{name}.jsonl") for name in ("profile", "test"))
    assert not {one.context for one in profiled} & {one.context for one in tested}
    for example in (*profiled, *tested):
        _, relation, name = example.question.split()
        (fact,) = [each for each in example.context.split(" .") if f"{relation} {name} " in each]
        assert fact.split()[-1] == example.answer
    assert len({one.context for one in tested}) == 2 * len({one.context for one in profiled})


def test_growing_keeps_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    training = runpy.run_path(str(EXAMPLE / "training.py"))
    torch.manual_seed(0)
    stem = training["new_network"](2, 32)
    tokens = torch.randint(0, 100, (2, 20))
    with torch.inference_mode():
        grown = training["grown"](stem, 3)
        assert torch.allclose(grown(tokens).logits, stem(tokens).logits, atol=1e-6)
    assert grown.config.num_hidden_layers == 6
