"""Makes a tiny Llama with random weights and a tokenizer of its own: random_model.py OUT.

It speaks nonsense, but as every real model does: with a chat template, an end token, 8,192
positions and a byte-level vocabulary of 4,096 learnt from two packages of the standard library.
"""

from __future__ import annotations

import asyncio
import email
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
out = Path(sys.argv[1])
texts = [
    path.read_text()
    for package in (asyncio, email)
    for path in sorted(Path(package.__file__).parent.glob("*.py"))
]

pieces = Tokenizer(models.BPE())
pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
pieces.decoder = decoders.ByteLevel()
pieces.train_from_iterator(
    texts,
    trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=pieces, bos_token=BEGIN, eos_token=END, pad_token=END
)
tokenizer.chat_template = TEMPLATE
tokenizer.save_pretrained(out)

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    bos_token_id=tokenizer.bos_token_id,
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,
)
LlamaForCausalLM(config).save_pretrained(out)
