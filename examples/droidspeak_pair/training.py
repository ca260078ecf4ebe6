"""Training of small models on stories."""

from __future__ import annotations

from typing import NamedTuple

import torch
from rich.progress import Progress
from story import ASK, WORDS, fact_words, write_stories
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

STEP_WORDS = 4_000
"""The words of a step, in stories of one length."""
QUESTIONS = 32
"""At most, after each story."""
OTHER_WEIGHT = 0.1
"""Of the loss of words that are no answers; most of these cannot be foreseen."""
LEARNT = 0.8
"""The share of right answers at which stories grow by half."""


class Lesson(NamedTuple):
    """What a model is trained on, and for how long."""

    title: str
    steps: int
    rate: float
    first_facts: int
    last_facts: int
    dialect: bool = False
    ends_at: float = 1.0
    """The share of right answers, about the longest stories, at which the lesson ends early."""


class Optimizer:
    """Muon for the matrices of layers, and AdamW for all else."""

    def __init__(self, network: LlamaForCausalLM, rate: float) -> None:
        matrices = [each for each in network.model.layers.parameters() if each.ndim == 2]
        known = set(map(id, matrices))
        others = [each for each in network.parameters() if id(each) not in known]
        self._rate = rate
        self._parts = (
            torch.optim.Muon(matrices, lr=rate, weight_decay=0.0),
            torch.optim.AdamW(others, lr=rate, weight_decay=0.0),
        )

    def step(self, loss: Tensor, share_of_rate: float) -> None:
        """Change the weights."""
        loss.backward()
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = share_of_rate * self._rate
            part.step()
            part.zero_grad()


def train(
    network: LlamaForCausalLM, lesson: Lesson, chance: torch.Generator, progress: Progress
) -> float:
    """Train on fresh stories; returns the share of right answers in the last steps."""
    optimizer = Optimizer(network, lesson.rate)
    task = progress.add_task(lesson.title, total=lesson.steps)
    facts, right = lesson.first_facts, 0.0
    for step in range(lesson.steps):
        told = int(torch.randint(facts // 2, facts + 1, (), generator=chance))
        asked = min(told, QUESTIONS)
        length = fact_words(lesson.dialect) * told + 5 * asked
        stories = write_stories(max(1, STEP_WORDS // length), told, asked, lesson.dialect, chance)
        loss, now_right = loss_of(network, stories.joined())
        optimizer.step(loss, min(1.0, (step + 1) / 20, 3 * (1 - step / lesson.steps)))
        right = 0.8 * right + 0.2 * now_right
        progress.update(
            task, advance=1, description=f"{lesson.title}: {right:.0%} of {facts} facts"
        )
        if facts == lesson.last_facts and right >= lesson.ends_at:
            break
        if facts < lesson.last_facts and right > LEARNT:
            facts, right = min(lesson.last_facts, facts * 3 // 2), 0.5
    progress.update(task, completed=lesson.steps)
    return right


def loss_of(network: LlamaForCausalLM, words: Tensor) -> tuple[Tensor, float]:
    """The loss on `words` (stories, words), and the share of right answers in it."""
    logits = network(words[:, :-1], use_cache=False).logits
    is_answer = torch.zeros_like(words, dtype=torch.bool)
    is_answer[:, 3:] = words[:, :-3] == WORDS.index(ASK)
    is_answer = is_answer[:, 1:]
    each = cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), reduction="none")
    answers = is_answer.flatten()
    loss = each[answers].mean() + OTHER_WEIGHT * each[~answers].mean()
    is_right = logits.argmax(-1)[is_answer] == words[:, 1:][is_answer]
    return loss, float(is_right.float().mean())
