"""Pairs of small models with a tokenizer, and questions that the receiver answers."""

from __future__ import annotations

import copy
import json
from itertools import count, takewhile
from pathlib import Path

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from metropolis.torch_engine.examples import Example
from metropolis.torch_engine.model import Model
from tests.torch_engine.models import VOCABULARY, greedy, tiny

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}assistant "
ENDS = list(range(VOCABULARY // 2, VOCABULARY))
"""Half of the tokens, so that answers end soon."""
LONGEST = 4
WORDS = ["?", "user", "assistant", *(f"w{number}" for number in range(3, VOCABULARY))]


def tokenizer(words: list[str] = WORDS, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    numbers = {word: number for number, word in enumerate(words)}
    made = Tokenizer(WordLevel(numbers, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", chat_template=template)


def pair(template: str | None = TEMPLATE, **changes: int) -> tuple[Model, Model]:
    """The receiver differs from the sender by a little in every weight."""
    sender = tiny(0, **changes)
    network = copy.deepcopy(sender.network)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in network.parameters():
            change = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight += 0.1 * weight.std() * change
    sender.network.generation_config.eos_token_id = network.generation_config.eos_token_id = ENDS
    words = tokenizer(template=template)
    return Model("base", sender.network, words), Model("chat", network, words)


def text(tokens: int, seed: int) -> str:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(3, VOCABULARY, (tokens,), generator=generator)
    return " ".join(WORDS[number] for number in drawn.tolist())


def examples(answering: Model, contexts: int = 3, questions: int = 4) -> list[Example]:
    """Questions of two lengths, whose answers are those of the model `answering`."""
    found: list[Example] = []
    for context in range(contexts):
        told = text(20 + context, seed=context)
        for number in count():
            asked = text(2 + number % 2, seed=100 + 1000 * context + number)
            tokens = answer_of(answering, told, asked)
            if 0 < len(tokens) < LONGEST:
                found.append(Example(told, asked, answering.tokenizer.decode(tokens)))
            if len(found) == (context + 1) * questions:
                break
    return found


def answer_of(model: Model, context: str, question: str) -> list[int]:
    content = f"{context}\n\n{question}"
    prompt = f"user {content} assistant " if model.tokenizer.chat_template else content
    answer = greedy(model, model.tokenizer.encode(prompt), LONGEST)
    return list(takewhile(lambda token: token not in ENDS, answer))


def write_pair(folder: Path) -> list[Example]:
    """Write the pair and its data file `data.jsonl`; returns the examples."""
    sender, receiver = pair()
    for model in (sender, receiver):
        model.network.save_pretrained(folder / model.name)
        model.tokenizer.save_pretrained(folder / model.name)
    found = examples(receiver, contexts=2, questions=2)
    write_examples(found, folder / "data.jsonl")
    return found


def write_examples(found: list[Example], path: Path) -> None:
    lines = [
        json.dumps({field: getattr(one, field) for field in Example.__struct_fields__})
        for one in found
    ]
    path.write_text("\n".join(lines) + "\n")
