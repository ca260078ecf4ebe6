"""Prefill times with reuse, relative to prefills of all layers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from metropolis.reuse.plan import Band, transitions
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import NOTHING, Start, prefill

REPETITIONS = 9


def prefill_shares(
    sender: Model,
    receiver: Model,
    prompt: Tensor,
    shared_tokens: int,
    choices: Sequence[Sequence[Band]],
    advance: Callable[[int], None] = lambda _: None,
    repetitions: int = REPETITIONS,
) -> list[float]:
    """The time of a prefill with each choice, relative to one of all layers.

    `prompt` (tokens) is prefilled alone, and its first `shared_tokens` are reused. Each repetition
    times one full prefill and all choices, in turn; a share is the median of its ratios. The first
    repetition is not counted. `advance` is called for each repetition.
    """
    inputs = {layer for bands in choices for layer in transitions(bands)}
    tokens = prompt[None]
    lent = prefill(sender, tokens[:, :shared_tokens], keep_inputs=inputs).kv
    ratios: list[list[float]] = [[] for _ in choices]
    for repetition in range(repetitions + 1):
        full_s = prefill_s(receiver, tokens)
        for found, bands in zip(ratios, choices, strict=True):
            taken_s = prefill_s(receiver, tokens, Start((), [lent], bands))
            if repetition:
                found.append(taken_s / full_s)
        advance(1)
    return [median(found) for found in ratios]


def prefill_s(model: Model, tokens: Tensor, start: Start = NOTHING) -> float:
    """The seconds until the logits of the last token are there."""
    _wait_for(model)
    begin = time.perf_counter()
    prefill(model, tokens, start)
    _wait_for(model)
    return time.perf_counter() - begin


def _wait_for(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
