"""What is written: models in the format of Hugging Face, and data files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from story import END, UNKNOWN, WORDS, text_of, write_stories
from tokenizers import Tokenizer, models, pre_tokenizers
from training import POSITIONS
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

CHAT = (
    "{% for message in messages %}{{ message['content'] }}"
    "{{ ' . ' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
)
"""All messages in a row: a story, questions, and answers, each with the word that ends it."""


def write_model(network: LlamaForCausalLM, folder: Path) -> None:
    """Write a model and its tokenizer, which divides texts at white space."""
    disable_progress_bar()
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=UNKNOWN)
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token=END,
        unk_token=UNKNOWN,
        chat_template=CHAT,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_examples(
    path: Path, contexts: int, facts: int, questions: int, chance: torch.Generator
) -> None:
    """Write questions about new stories in the dialect."""
    stories = write_stories(contexts, facts, questions, dialect=True, chance=chance)
    with path.open("w") as file:
        for told, asked in zip(stories.facts, stories.questions, strict=True):
            for question in asked:
                example = {
                    "context": text_of(told),
                    "question": text_of(question[:3]),
                    "answer": text_of(question[3:4]),
                }
                file.write(json.dumps(example) + "\n")
