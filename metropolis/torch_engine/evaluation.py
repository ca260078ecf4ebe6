"""The quality of a model's answers, by how much of the prompts' caches it reuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metropolis.reuse.plan import Band, transitions
from metropolis.torch_engine.examples import Passage, Questionnaire, answer_text
from metropolis.torch_engine.generation import generate_greedy
from metropolis.torch_engine.kv import KV
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import Start, prefill
from metropolis.torch_engine.quality import Metric

BATCH = 32
"""Questions that are answered together."""


def own_quality(model: Model, data: Questionnaire, metric: Metric) -> float:
    """The quality of the model's answers without reuse."""
    scores = [
        score
        for passage in data.passages
        for score in _scores(model, data, passage, prefill(model, passage.context[None]).kv, metric)
    ]
    return sum(scores) / len(scores)


def reuse_qualities(
    sender: Model,
    receiver: Model,
    data: Questionnaire,
    choices: Sequence[Sequence[Band]],
    metric: Metric,
    advance: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """The quality of the receiver's answers for each choice of layers that it recomputes.

    The sender reads each context once. `advance` is called for each context and choice.
    """
    inputs = {layer for bands in choices for layer in transitions(bands)}
    totals = [0.0] * len(choices)
    for passage in data.passages:
        context = passage.context[None]
        lent = prefill(sender, context, keep_inputs=inputs).kv
        for number, bands in enumerate(choices):
            kv = prefill(receiver, context, Start((), [lent], bands)).kv
            totals[number] += sum(_scores(receiver, data, passage, kv, metric))
            advance(1)
    return [total / data.questions for total in totals]


def _scores(
    model: Model, data: Questionnaire, passage: Passage, kv: KV, metric: Metric
) -> list[float]:
    """The score of each question of `passage`, answered from the context's `kv`."""
    scores = []
    for begin in range(0, len(passage.questions), BATCH):
        batch = passage.questions[begin : begin + BATCH]
        asked = [question.tokens for question in batch]
        answers = generate_greedy(model, kv, asked, data.answer_tokens).tolist()
        scores += [
            metric(answer_text(model, answer), question.answer)
            for answer, question in zip(answers, batch, strict=True)
        ]
    return scores
