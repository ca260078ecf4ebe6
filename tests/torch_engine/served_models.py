"""Folders of small models with a tokenizer of bytes: a base and variants of it."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from metropolis.torch_engine.model import Model

BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
LAYERS = 5


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate([BEGIN, END, *alphabet])}
    pieces = Tokenizer(models.BPE(words, []))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token=BEGIN, eos_token=END)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def variants(*names: str, layers: int = LAYERS, seed: int = 0) -> list[Model]:
    """Models of one shape whose weights differ a little, in fp64."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    network = LlamaForCausalLM(config).double().eval()
    models = []
    for name in names:
        models.append(Model(name, copy.deepcopy(network), tokenizer))
        with torch.no_grad():
            for weights in network.parameters():
                weights += 0.02 * torch.randn_like(weights)
    return models


def save_models(folder: Path, *names: str, layers: int = LAYERS, seed: int = 0) -> list[Path]:
    """Write `variants` in fp32, each to a folder of its name."""
    for model in variants(*names, layers=layers, seed=seed):
        model.network.float().save_pretrained(folder / model.name)
        model.tokenizer.save_pretrained(folder / model.name)
    return [folder / name for name in names]
