"""Training of small models on stories."""

from __future__ import annotations

from typing import NamedTuple

import torch
from rich.progress import Progress
from story import ASK, END, WORDS, fact_words, write_stories
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

QUESTIONS = 32
"""Maximum number of questions after each story."""
OTHER_WEIGHT = 0.1
"""Weight of the loss of words that are no answers, most of which cannot be predicted."""
LEARNT = 0.8
"""Share of right answers at which the length of stories grows by half."""
POSITIONS = 4_096


class Lesson(NamedTuple):
    """What a model is trained on, and for how long."""

    title: str
    rate: float
    first_facts: int
    """Maximum number of facts of a story at first; it grows while the answers are right."""
    last_facts: int
    """Maximum number of facts of a story at the end."""
    last_steps: int
    """Steps with stories of `last_facts`, over which the learning rate falls to zero."""
    steps_max: int = 1_000
    dialect: bool = False
    muon: bool = True
    step_words: int = 4_000
    """Words of one step; all stories of a step are equally long."""


class Optimizer:
    """AdamW; or Muon for the matrices of layers, and AdamW for all else."""

    def __init__(self, network: LlamaForCausalLM, lesson: Lesson) -> None:
        matrices = [
            each for each in network.model.layers.parameters() if lesson.muon and each.ndim == 2
        ]
        known = set(map(id, matrices))
        others = [each for each in network.parameters() if id(each) not in known]
        self._rate = lesson.rate
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=lesson.rate, weight_decay=0.0)
        ]
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, lr=lesson.rate, weight_decay=0.0))

    def step(self, loss: Tensor, share_of_rate: float) -> None:
        """Change the weights."""
        loss.backward()
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = share_of_rate * self._rate
            part.step()
            part.zero_grad()


def new_network(layers: int, width: int) -> LlamaForCausalLM:
    """A model of the shape of Llama with random weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=POSITIONS,
            bos_token_id=None,
            eos_token_id=WORDS.index(END),
        )
    )


def grown(stem: LlamaForCausalLM, times: int) -> LlamaForCausalLM:
    """A network with `times` as many layers as `stem` that computes the same function.

    The new layers precede each layer of the stem, and add nothing until they are trained.
    """
    config = stem.config
    network = new_network(times * config.num_hidden_layers, config.hidden_size)
    with torch.no_grad():
        for number, layer in enumerate(network.model.layers):
            if number % times == times - 1:
                layer.load_state_dict(stem.model.layers[number // times].state_dict())
            else:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
    network.model.embed_tokens.load_state_dict(stem.model.embed_tokens.state_dict())
    network.model.norm.load_state_dict(stem.model.norm.state_dict())
    network.lm_head.load_state_dict(stem.lm_head.state_dict())
    return network


def train(
    network: LlamaForCausalLM, lesson: Lesson, chance: torch.Generator, progress: Progress
) -> None:
    """Train on fresh stories."""
    optimizer = Optimizer(network, lesson)
    task = progress.add_task(lesson.title, total=lesson.steps_max)
    facts, right, left = lesson.first_facts, 0.0, lesson.last_steps
    for step in range(lesson.steps_max):
        told = int(torch.randint(facts // 2, facts + 1, (), generator=chance))
        asked = min(told, QUESTIONS)
        length = fact_words(lesson.dialect) * told + 5 * asked
        stories = write_stories(
            max(1, lesson.step_words // length), told, asked, lesson.dialect, chance
        )
        loss, now_right = loss_of(network, stories.joined())
        optimizer.step(loss, min(1.0, (step + 1) / 20, left / lesson.last_steps))
        right = 0.8 * right + 0.2 * now_right
        progress.update(
            task, advance=1, description=f"{lesson.title}: {right:.0%} of {facts} facts"
        )
        if facts == lesson.last_facts:
            progress.update(task, total=step + left)
            left -= 1
            if not left:
                break
        elif right > LEARNT:
            facts, right = min(lesson.last_facts, facts * 3 // 2), 0.5


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
