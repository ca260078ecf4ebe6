"""Small models with random weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from metropolis.torch_engine.generation import generate_greedy
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import NOTHING, Start, prefill

VOCABULARY = 97
LAYERS = 5

torch.set_num_threads(1)


def tiny(seed: int, kind: str = "llama", **changes: int) -> Model:
    """Weights large enough that a wrong mask, position or layer changes logits visibly.

    They are fp64, as such weights amplify differences of rounding.
    """
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        **changes,
    }
    torch.manual_seed(seed)
    if kind == "llama":
        network = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        network = MistralForCausalLM(MistralConfig(**sizes, sliding_window=128))
    return Model(f"{kind}{seed}", network.double().eval())


def prompts(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, tokens), generator=generator)


def greedy(
    model: Model, prompt: Sequence[int], new_tokens: int, start: Start = NOTHING
) -> list[int]:
    """The most likely tokens after a prompt, all but the last token of which may be cached."""
    tokens = torch.tensor([prompt])
    context = prefill(model, tokens[:, :-1], start).kv
    return [*map(int, generate_greedy(model, context, [tokens[0, -1:]], new_tokens)[0])]
