"""The profile of a pair: quality and prefill time by the layers that the receiver recomputes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from metropolis.progress import progress_bar
from metropolis.reuse.band_search import search
from metropolis.reuse.plan import Band, Plan, PlanPoint, pareto_front
from metropolis.torch_engine.evaluation import own_quality, reuse_qualities
from metropolis.torch_engine.examples import Questionnaire
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import prefill
from metropolis.torch_engine.quality import METRICS
from metropolis.torch_engine.timing import REPETITIONS, prefill_shares


class LayerDifference(NamedTuple):
    """How far the receiver's cache of a layer is from the sender's (DroidSpeak Fig. 8).

    Each is the norm of the difference, relative to the norm of the sender's.
    """

    keys: float
    values: float
    inputs: float
    """E, the input of the layer."""


class Profile(NamedTuple):
    """What was measured, and the plan made of it."""

    plan: Plan
    points: list[PlanPoint]
    """All evaluated choices: no recomputed layer, and every band of the search."""
    differences: list[LayerDifference]
    """The caches' differences, one per layer in order."""


def profile(
    sender: Model,
    receiver: Model,
    data: Questionnaire,
    metric: str,
    data_name: str,
) -> Profile:
    """Measure a pair of models of one shape. `metric` is a name in METRICS.

    Prefill is timed for one band of each number of layers, the best one.
    """
    layers = receiver.shape.layers
    contexts = len(data.passages)
    score = METRICS[metric]

    def evaluate(bands: Sequence[Band]) -> list[float]:
        with progress_bar(len(bands) * contexts, "prefills") as (advance, describe):
            describe(f"quality of {len(bands)} bands")
            choices = [[band] for band in bands]
            return reuse_qualities(sender, receiver, data, choices, score, advance)

    found = search(layers, evaluate)
    qualities: dict[tuple[Band, ...], float] = {(band,): one for band, one in found.items()}
    qualities[()] = reuse_qualities(sender, receiver, data, [()], score)[0]
    best = best_by_layers(qualities)
    prompt = torch.cat((data.typical.context, data.typical.questions[0].tokens))
    with progress_bar(REPETITIONS + 1, "repetitions") as (advance, describe):
        describe("prefill times")
        shares = prefill_shares(
            sender, receiver, prompt, len(data.typical.context), list(best.values()), advance
        )
    share_by_layers = dict(zip(best, shares, strict=True))
    points = [
        PlanPoint(bands, quality, min(1.0, share_by_layers[sum(map(len, bands))]))
        for bands, quality in qualities.items()
    ]
    plan = Plan(
        sender=sender.name,
        receiver=receiver.name,
        layers=layers,
        metric=metric,
        data=data_name,
        prompt_tokens=len(prompt),
        sender_quality=own_quality(sender, data, score),
        receiver_quality=own_quality(receiver, data, score),
        points=pareto_front(points),
        source=f"measured: {data.questions} questions, {receiver.network.dtype} on "
        f"{receiver.device}".replace("torch.", ""),
    )
    return Profile(plan, points, layer_differences(sender, receiver, data))


def best_by_layers(
    qualities: dict[tuple[Band, ...], float],
) -> dict[int, tuple[Band, ...]]:
    """The bands of the best quality for each number of recomputed layers, in its order."""
    best: dict[int, tuple[Band, ...]] = {}
    for bands in sorted(qualities, key=lambda bands: (-qualities[bands], bands)):
        best.setdefault(sum(map(len, bands)), bands)
    return dict(sorted(best.items()))


def layer_differences(sender: Model, receiver: Model, data: Questionnaire) -> list[LayerDifference]:
    """The difference of the models' caches of a typical context, by layer."""
    context = data.typical.context[None]
    every = range(receiver.shape.layers)
    theirs = prefill(sender, context, keep_inputs=every).kv
    ours = prefill(receiver, context, keep_inputs=every).kv

    def relative(one: torch.Tensor, other: torch.Tensor) -> float:
        return float((other - one).float().norm() / one.float().norm())

    return [
        LayerDifference(
            relative(theirs.keys[layer], ours.keys[layer]),
            relative(theirs.values[layer], ours.values[layer]),
            relative(theirs.inputs[layer], ours.inputs[layer]),
        )
        for layer in every
    ]
