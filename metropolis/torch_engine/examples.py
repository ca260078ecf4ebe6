"""Contexts with questions and answers, as text and as tokens.

A data file has a JSON object on each line: `{"context": text, "question": text, "answer": text}`.
Lines with equal contexts share it. A prompt is one message of the user, the context, an empty line
and the question, in the receiver's chat template if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from metropolis.torch_engine.model import Model
from metropolis.types import MetropolisError


class Example(msgspec.Struct, frozen=True):
    """A line of a data file."""

    context: str
    question: str
    answer: str


class Question(NamedTuple):
    """What follows the context in a prompt, and the right answer."""

    tokens: Tensor
    """(n,), with n >= 1."""
    answer: str


class Passage(NamedTuple):
    """A context and its questions, as tokens on the device of the models."""

    context: Tensor
    """(n,): the tokens with which the prompts of all `questions` begin."""
    questions: list[Question]


class Questionnaire(NamedTuple):
    """The passages of a data file, for a pair of models."""

    passages: list[Passage]
    answer_tokens: int
    """Length of the longest right answer, including the token that ends it."""

    @property
    def questions(self) -> int:
        """Number of questions."""
        return sum(len(passage.questions) for passage in self.passages)

    @property
    def typical(self) -> Passage:
        """The passage whose context has the median length."""
        by_length = sorted(self.passages, key=lambda passage: len(passage.context))
        return by_length[len(by_length) // 2]


def load_examples(path: Path) -> list[Example]:
    """The examples in a file. Raises MetropolisError if it is not in the format."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MetropolisError(f"{path}: cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = msgspec.json.decode(line, type=Example)
        except (ValueError, RecursionError) as error:
            raise MetropolisError(
                f"{path}: line {number} is not an example: {error}; it should be "
                '{"context": text, "question": text, "answer": text}'
            ) from error
        for field in Example.__struct_fields__:
            if not getattr(example, field).strip():
                raise MetropolisError(f"{path}: line {number}: {field} is empty")
        found.append(example)
    if not found:
        raise MetropolisError(f"{path}: has no line; it should have an example on each")
    return found


def tokenize(
    examples: Iterable[Example], sender: Model, receiver: Model, where: str
) -> Questionnaire:
    """The examples as tokens.

    Raises MetropolisError, which names `where`, if the tokenizers differ on a prompt, or if a
    prompt and its answer have more tokens than the models have positions.
    """
    by_context: dict[str, list[Example]] = {}
    for example in examples:
        by_context.setdefault(example.context, []).append(example)
    answer_tokens = 1 + max(
        len(_encode(receiver.tokenizer, one.answer, special=False))
        for group in by_context.values()
        for one in group
    )
    passages = [
        _passage(context, group, answer_tokens, sender, receiver, where)
        for context, group in by_context.items()
    ]
    return Questionnaire(passages, answer_tokens)


def _passage(
    context: str,
    group: Sequence[Example],
    answer_tokens: int,
    sender: Model,
    receiver: Model,
    where: str,
) -> Passage:
    """The examples of one context; raises MetropolisError as `tokenize`."""
    tokenizer = receiver.tokenizer
    positions = min(sender.positions, receiver.positions)
    prompts = [_prompt(tokenizer, context, one.question) for one in group]
    encoded = [_encode(tokenizer, *prompt) for prompt in prompts]
    for prompt, tokens in zip(prompts, encoded, strict=True):
        if _encode(sender.tokenizer, *prompt) != tokens:
            raise MetropolisError(
                f"{where}: the tokenizers of {sender.name!r} and {receiver.name!r} differ on "
                f"the context {context[:40]!r}; caches are shared by models of one tokenizer"
            )
        if len(tokens) + answer_tokens > positions:
            raise MetropolisError(
                f"{where}: the prompt of the context {context[:40]!r} and its answer have "
                f"{len(tokens) + answer_tokens:,} tokens; the models have {positions:,} "
                "positions"
            )
    # What a question of no words shares with these ends before the question.
    bare = _encode(tokenizer, *_prompt(tokenizer, context, ""))
    columns = zip(bare, *(tokens[:-1] for tokens in encoded), strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))
    if not shared:
        raise MetropolisError(f"{where}: the context {context[:40]!r} has no tokens")
    device = receiver.device
    questions = [
        Question(torch.tensor(tokens[shared:], device=device), one.answer)
        for tokens, one in zip(encoded, group, strict=True)
    ]
    return Passage(torch.tensor(encoded[0][:shared], device=device), questions)


def answer_text(model: Model, tokens: Sequence[int]) -> str:
    """The text of an answer, up to the first token that ends it."""
    kept = list(takewhile(lambda token: token not in model.end_tokens, tokens))
    return str(model.tokenizer.decode(kept, skip_special_tokens=True))


def _prompt(tokenizer: Any, context: str, question: str) -> tuple[str, bool]:
    """The text of a prompt, and whether the tokenizer adds its special tokens."""
    content = f"{context}\n\n{question}"
    if not tokenizer.chat_template:
        return content, True
    message = {"role": "user", "content": content}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    return text, False


def _encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=special))
