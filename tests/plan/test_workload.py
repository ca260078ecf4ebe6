"""Drawn requests."""

from __future__ import annotations

import numpy as np

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import Machine
from metropolis.plan.workload import columns_of, drawn


def test_a_prompt_contains_the_answer_before_it_as_the_context_ends_it() -> None:
    node = Node("a", "vicuna-13b", ("s",), chain=True)
    application = Application("chain", {"s": (Item("0", (2148,) * 3),)}, (node,))
    lengths = {"vicuna-13b": LengthDistribution.of([1500])}
    random = np.random.default_rng(0)
    workload = drawn(columns_of(application), lengths, Machine().shapes, random)["a"]
    assert workload.prompt_tokens.tolist() == [2148, 3648, 2148 + 448]
    assert workload.output_tokens.tolist() == [1500, 448, 1500]
