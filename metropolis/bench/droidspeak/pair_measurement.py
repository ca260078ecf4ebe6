"""What is measured on a pair that was really fine-tuned; the rows are plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metropolis.reuse.plan import Band, Plan, PlanError, transitions
from metropolis.torch_engine.evaluation import own_quality, reuse_qualities
from metropolis.torch_engine.examples import Questionnaire, load_examples, tokenize
from metropolis.torch_engine.model import Model, require_variants
from metropolis.torch_engine.prefill import NOTHING, Start, all_inputs, prefill
from metropolis.torch_engine.quality import METRICS
from metropolis.torch_engine.timing import REPETITIONS, prefill_shares
from metropolis.torch_engine.weights import load_model

LOSS = 0.02
"""Maximum loss of quality of the chosen point, which is the plan's fastest within it."""
BATCH = 4
SHORT = 64
"""Tokens of a short prompt."""


class Pair(NamedTuple):
    """Models, a plan for them, and questions that the plan was not made with."""

    sender: Model
    receiver: Model
    plan: Plan
    test: Questionnaire
    lengths: Sequence[int]
    """Tokens of prompts whose prefill is timed."""

    @property
    def choices(self) -> dict[str, Sequence[Band]]:
        """What the receiver recomputes, by the name of the row."""
        ours = self.plan.fastest(LOSS)
        if ours is None:
            raise PlanError(f"the plan has no point that loses at most {LOSS:g}")
        return {"ours": ours.recompute, "all KV": (), "all E": all_inputs(self.plan.layers)}

    def prompt(self, tokens: int) -> Tensor:
        """A prompt of `tokens` tokens: the test's contexts in a row, then a question."""
        question = self.test.typical.questions[0].tokens
        words = cycle(torch.cat([passage.context for passage in self.test.passages]))
        return torch.cat((torch.stack(list(islice(words, tokens - len(question)))), question))


def open_pair(folder: Path, plan: Plan, quick: bool) -> Pair:
    """The pair in a folder of `examples/droidspeak_pair`. Raises MetropolisError."""
    sender = load_model(plan.sender, folder / "base")
    receiver = load_model(plan.receiver, folder / "receiver")
    require_variants([sender, receiver])
    if plan.layers != receiver.shape.layers:
        raise PlanError(
            f"the plan is for {plan.layers} layers; {folder} has models of {receiver.shape.layers}"
        )
    data = folder / "test.jsonl"
    test = tokenize(load_examples(data), sender, receiver, str(data))
    if quick:
        test = test._replace(passages=test.passages[:2])
    return Pair(sender, receiver, plan, test, (128,) if quick else (512, 1024, 2048))


def table_2(pair: Pair) -> Iterator[dict[str, Any]]:
    """Rows in the form of the paper's Table 2, with prefill times at several lengths."""
    score, choices = METRICS[pair.plan.metric], pair.choices
    qualities = reuse_qualities(
        pair.sender, pair.receiver, pair.test, list(choices.values()), score
    )
    question = len(pair.test.typical.questions[0].tokens)
    shares = {
        length: prefill_shares(
            pair.sender, pair.receiver, pair.prompt(length), length - question,
            list(choices.values()),
        )
        for length in pair.lengths
    }  # fmt: skip
    yield {"system": "base", "quality": own_quality(pair.sender, pair.test, score)}
    yield {"system": "receiver", "quality": own_quality(pair.receiver, pair.test, score)}
    for number, (name, bands) in enumerate(choices.items()):
        yield {
            "system": name,
            "recompute": None if name == "all E" else bands,
            "quality": qualities[number],
            "prefill_share": {str(length): shares[length][number] for length in pair.lengths},
        }


def front(pair: Pair) -> Iterator[dict[str, Any]]:
    """The plan's points on the questions of the test, and their prefill times again."""
    choices = [point.recompute for point in pair.plan.points]
    score = METRICS[pair.plan.metric]
    qualities = reuse_qualities(pair.sender, pair.receiver, pair.test, choices, score)
    length = pair.plan.prompt_tokens
    question = len(pair.test.typical.questions[0].tokens)
    shares = prefill_shares(
        pair.sender, pair.receiver, pair.prompt(length), length - question, choices
    )
    for point, quality, share in zip(pair.plan.points, qualities, shares, strict=True):
        yield {
            "recompute": point.recompute,
            "plan_quality": point.quality,
            "quality": quality,
            "plan_prefill_share": point.prefill_share,
            "prefill_share": share,
        }


def input_overheads(pair: Pair) -> Iterator[dict[str, Any]]:
    """What E costs beside KV (Fig. 12): memory; time to keep, to copy and to project it."""
    layers = pair.plan.layers
    kept = {"ours": transitions(pair.choices["ours"]), "all E": frozenset(range(1, layers))}
    kv_bytes = pair.receiver.kv_bytes_per_token
    for length in pair.lengths:
        tokens = pair.prompt(length)[None]
        for name, inputs in kept.items():
            bytes_per_token = len(inputs) * pair.receiver.input_bytes_per_token
            lent = prefill(pair.sender, tokens, NOTHING, inputs).kv.part(0, length - 1)
            target = lent.copy()
            layer_kv = list(
                zip((*target.keys, *target.values), (*lent.keys, *lent.values), strict=True)
            )
            layer_inputs = [(target.inputs[layer], lent.inputs[layer]) for layer in inputs]
            plain_s, keeping_s, kv_s, inputs_s, reuse_s, project_s = medians_s(
                partial(prefill, pair.sender, tokens),
                partial(prefill, pair.sender, tokens, NOTHING, inputs),
                partial(_load, layer_kv),
                partial(_load, layer_inputs),
                partial(prefill, pair.receiver, tokens, Start((), [lent])),
                partial(prefill, pair.receiver, tokens, Start((), [lent], all_inputs(layers)))
                if name == "all E"
                else lambda: None,
            )
            yield {
                "system": name,
                "tokens": length,
                "inputs": len(inputs),
                "bytes_per_token": bytes_per_token,
                "relative_to_kv": bytes_per_token / kv_bytes,
                "sender_prefill_ms": 1000 * plain_s,
                "sender_prefill_keeping_ms": 1000 * keeping_s,
                "copy_kv_ms": 1000 * kv_s,
                "copy_inputs_ms": 1000 * inputs_s,
                "projection_ms": 1000 * (project_s - reuse_s) if name == "all E" else None,
            }


def _load(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy into memory that is there, as from another model's cache."""
    for target, source in pairs:
        target.copy_(source)


def medians_s(*actions: Callable[[], object]) -> list[float]:
    """The median seconds of each action; they take turns. The first turn is not counted."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(REPETITIONS + 1):
        for found, action in zip(taken, actions, strict=True):
            begin = time.perf_counter()
            action()
            found.append(time.perf_counter() - begin)
    return [median(found[1:]) for found in taken]


def equality(pair: Pair) -> Iterator[dict[str, Any]]:
    """Logits of the receiver from its own cache, for every band, beside those of plain prefills."""
    model, layers = pair.receiver, pair.plan.layers
    bands = [Band(first, last) for first in range(layers) for last in range(first, layers)]
    question = len(pair.test.typical.questions[0].tokens)
    for length in (SHORT, *pair.lengths[:2]):
        alone = pair.prompt(length)[None]
        batch = torch.cat([alone.roll(7 * number, 1) for number in range(BATCH)])
        for tokens in (alone, batch):
            plain = prefill(model, tokens, keep_inputs=range(layers))
            lent = plain.kv.part(0, length - question)
            differences = [
                float((prefill(model, tokens, Start((), [lent], [band])).logits - plain.logits)
                      .abs().max())
                for band in bands
            ]  # fmt: skip
            yield {
                "tokens": length,
                "batch": len(tokens),
                "bands": len(bands),
                "equal_bitwise": differences.count(0.0),
                "largest_difference": max(differences),
                "largest_logit": float(plain.logits.abs().max()),
            }
