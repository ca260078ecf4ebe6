"""Greedy answers without a server, for evaluations."""

from __future__ import annotations

import torch
from torch import Tensor

from metropolis.torch_engine.decode import DecodeBatch
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import NOTHING, Start, prefill


def generate_greedy(
    model: Model, tokens: Tensor, new_tokens: int, start: Start = NOTHING
) -> Tensor:
    """The most likely next tokens (batch, new_tokens) of prompts (batch, tokens).

    The prompts are longer than what `start` has of them. End tokens end nothing.
    """
    logits, kv = prefill(model, tokens, start)
    batch = DecodeBatch(model)
    batch.add(kv, tokens.shape[1] + new_tokens)
    answers = [logits.argmax(-1)]
    while len(answers) < new_tokens:
        answers.append(batch.step(answers[-1]).argmax(-1))
    return torch.stack(answers, 1)
