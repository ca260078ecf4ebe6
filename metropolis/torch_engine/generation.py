"""Greedy answers without a server, for evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from metropolis.torch_engine.kv import KV
from metropolis.torch_engine.model import Model, finish, project


def generate_greedy(
    model: Model, context: KV, questions: Sequence[Tensor], new_tokens: int
) -> Tensor:
    """The most likely next tokens (questions, new_tokens) after a context and each question.

    A question is at least one token. All are computed together, each sees the context and itself;
    the context's KV is not copied for each. End tokens end nothing.
    """
    device = context.keys[0].device
    counts = torch.tensor([len(question) for question in questions], device=device)
    tokens = torch.cat([*questions])
    owners = torch.arange(len(questions), device=device).repeat_interleave(counts)
    last = counts.cumsum(0) - 1
    begins = (last + 1 - counts)[owners]
    positions = context.tokens + torch.arange(len(tokens), device=device) - begins
    known_owners = torch.full((context.tokens,), -1, device=device)
    known_positions = torch.arange(context.tokens, device=device)
    keys, values, answers = [*context.keys], [*context.values], []
    with torch.inference_mode():
        while True:
            known_owners = torch.cat((known_owners, owners))
            known_positions = torch.cat((known_positions, positions))
            is_own = (known_owners < 0) | (known_owners == owners[:, None])
            mask = is_own & (known_positions <= positions[:, None])
            rotary = model.rotary(positions[None])
            hidden = model.embed(tokens[None])
            for number, layer in enumerate(model.network.model.layers):
                normed = layer.input_layernorm(hidden)
                queries, new_keys, new_values = project(layer, normed, rotary, len(tokens))
                keys[number] = torch.cat((keys[number], new_keys), 2)
                values[number] = torch.cat((values[number], new_values), 2)
                attended = scaled_dot_product_attention(
                    queries, keys[number], values[number], attn_mask=mask, enable_gqa=True
                )
                hidden = finish(layer, hidden, attended.transpose(1, 2).flatten(2))
            tokens = model.logits(hidden[0, last]).argmax(-1)
            answers.append(tokens)
            if len(answers) == new_tokens:
                return torch.stack(answers, 1)
            owners, positions = owners[last], positions[last] + 1
            last = torch.arange(len(questions), device=device)
