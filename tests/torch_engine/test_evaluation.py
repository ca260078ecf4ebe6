"""Data files, metrics, and the quality of answers with reuse."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.reuse.plan import Band
from metropolis.torch_engine import evaluation
from metropolis.torch_engine.evaluation import own_quality, reuse_qualities
from metropolis.torch_engine.examples import Example, load_examples, tokenize
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.quality import METRICS, exact_match, f1
from metropolis.types import MetropolisError
from tests.torch_engine.models import LAYERS
from tests.torch_engine.pairs import examples, pair, tokenizer, write_examples

SENDER, RECEIVER = pair()
OWN = tokenize(examples(SENDER, contexts=1), SENDER, RECEIVER, "here")
TOLD = examples(RECEIVER, contexts=2)
WHOLE = [Band(0, LAYERS - 1)]
BANDS = [[], [Band(1, 3)], [Band(0, 0), Band(2, 4)], WHOLE]

word = st.sampled_from(["Cat", "cat", "dog,", "dog", "the", "a", "An", "tree", "...", "9"])
answers = st.lists(word, max_size=6).map(" ".join)
texts = st.text(min_size=1).filter(str.strip)


def plain(text: str) -> list[str]:
    """The words that count, of what `answers` draws."""
    bare = [one.lower().strip(".,") for one in text.split()]
    return [one for one in bare if one and one not in {"a", "an", "the"}]


@given(answers, answers)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(found: str, right: str) -> None:
    ours, theirs = plain(found), plain(right)
    common = sum(min(ours.count(one), theirs.count(one)) for one in set(ours))
    if common:
        precision, recall = common / len(ours), common / len(theirs)
        assert f1(found, right) == pytest.approx(2 / (1 / precision + 1 / recall))
    else:
        assert f1(found, right) == (not ours and not theirs)
    assert (f1(found, right) == 1) == (Counter(ours) == Counter(theirs))
    assert exact_match(found, right) == (ours == theirs)


@given(st.lists(st.builds(Example, texts, texts, texts), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_a_data_file_holds_any_text(
    tmp_path_factory: pytest.TempPathFactory, written: list[Example]
) -> None:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    write_examples(written, path)
    assert load_examples(path) == written


GOOD = {"context": "c", "question": "q", "answer": "a"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no line"),
        ("\n\n", "has no line"),
        (json.dumps(GOOD) + '\n{"context": "c", "question": "q"}', "line 2 .*`answer`"),
        (json.dumps({**GOOD, "question": 3}), r"line 1 .*`\$.question`"),
        (json.dumps({**GOOD, "context": " "}), "line 1: context is empty"),
        ("[1, 2]", "line 1 is not an example"),
        ("[" * 100_000, "line 1 is not an example"),
        ("context", "line 1 is not an example"),
        (b"\xff\xfe", "line 1 is not an example"),
    ],
)
def test_a_bad_data_file_is_refused(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(MetropolisError, match=sentence):
        load_examples(path)


def test_a_data_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match="cannot be read"):
        load_examples(tmp_path / "data.jsonl")


@pytest.mark.parametrize("template", [None, tokenizer().chat_template])
def test_passages_hold_the_tokens_of_whole_prompts(template: str | None) -> None:
    sender, receiver = pair(template)
    told = [
        Example("w3 w4", "w9", "w5"),
        Example("w7", "w8", "w5 w6"),
        Example("w3 w4", "w9 w8", "w5"),
    ]
    data = tokenize(told, sender, receiver, "here")
    assert data.answer_tokens == 3
    assert [len(passage.questions) for passage in data.passages] == [2, 1]
    before, after = ("user ", " assistant") if template else ("", "")
    for passage, prompts in zip(
        data.passages, [["w3 w4 w9", "w3 w4 w9 w8"], ["w7 w8"]], strict=True
    ):
        assert receiver.tokenizer.decode(passage.context) == before + prompts[0].removesuffix(
            " w9"
        ).removesuffix(" w8")
        for question, prompt in zip(passage.questions, prompts, strict=True):
            whole = torch.cat((passage.context, question.tokens))
            assert receiver.tokenizer.decode(whole) == before + prompt + after


def test_prompts_that_the_models_cannot_share_are_refused() -> None:
    told = [Example("w3 w4", "w5", "w6")]
    other = Model("base", SENDER.network, tokenizer(["?", "user", "assistant", "w4", "w3"]))
    with pytest.raises(MetropolisError, match=r"tokenizers of 'base' and 'chat' differ .*'w3 w4'"):
        tokenize(told, other, RECEIVER, "here")
    long = [Example("w3 " * 300, "w4", "w5")]
    with pytest.raises(MetropolisError, match=r"here: .* have 305 tokens; .* 256 positions"):
        tokenize(long, SENDER, RECEIVER, "here")
    with pytest.raises(MetropolisError, match="has no tokens"):
        tokenize([Example("\n", "w4", "w5")], *pair(None), "here")


@pytest.mark.parametrize("metric", METRICS)
def test_quality_is_the_mean_over_single_questions(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for batches of any size, and whether questions share contexts or not."""
    data = tokenize(TOLD, SENDER, RECEIVER, "here")
    score = METRICS[metric]
    assert own_quality(RECEIVER, data, score) == 1
    together = reuse_qualities(SENDER, RECEIVER, data, BANDS, score)
    assert together[-1] == 1
    assert together[0] < 1
    alone = [tokenize([one], SENDER, RECEIVER, "here") for one in TOLD]
    for number, bands in enumerate(BANDS):
        single = [
            reuse_qualities(
                SENDER, RECEIVER, one._replace(answer_tokens=data.answer_tokens), [bands], score
            )[0]
            for one in alone
        ]
        assert together[number] == pytest.approx(sum(single) / len(single))
    monkeypatch.setattr(evaluation, "BATCH", 1)
    assert reuse_qualities(SENDER, RECEIVER, data, BANDS, score) == together


@given(st.integers(0, LAYERS - 1), st.integers(1, LAYERS))
@settings(deadline=None, max_examples=10)
def test_a_model_loses_nothing_by_its_own_cache(first: int, layers: int) -> None:
    band = Band(first, min(LAYERS, first + layers) - 1)
    assert reuse_qualities(SENDER, SENDER, OWN, [[band]], exact_match) == [1]
