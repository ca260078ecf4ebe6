"""The requests of an application as columns, with one draw of their output lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from metropolis.llm.tokens import approximate_tokens
from metropolis.plan.application import Application, ApplicationError, Node, NodeRequest
from metropolis.plan.application import template_tokens as tokens_of_template
from metropolis.plan.lengths import Lengths, lengths_for
from metropolis.sim.architecture import Architecture

Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Needs:
    """The requests of a node that contain answers of the node `node`: k pairs.

    `rows` are (k,) rows of the requests, `answers` (k,) rows of the answers in `node`.
    """

    node: str
    rows: Counts
    answers: Counts


@dataclass(frozen=True)
class NodeColumns:
    """The requests of a node before their lengths are drawn; n rows."""

    node: Node
    own_tokens: Counts
    """(n,): tokens of the prompt, without answers of other requests."""
    previous: Counts
    """The row before it in its chain; -1: none."""
    known_tokens: Counts
    """The length of the answer, where it is known; 0 elsewhere."""
    needs: tuple[Needs, ...]


@dataclass(frozen=True)
class NodeWorkload:
    """The requests of a node; n rows."""

    node: Node
    prompt_tokens: Counts
    output_tokens: Counts
    previous: Counts
    needs: tuple[Needs, ...]
    flops: npt.NDArray[np.float64]
    """(n,): operations of prefill and decoding, without recomputation."""

    def __len__(self) -> int:
        return len(self.prompt_tokens)


Workload: TypeAlias = dict[str, NodeWorkload]
"""Node -> requests, in topological order."""
Columns: TypeAlias = dict[str, NodeColumns]


def columns_of(application: Application) -> Columns:
    """The columns of all nodes, in topological order."""
    requests = application.requests()
    return {name: _columns(application.node(name), each) for name, each in requests.items()}


def drawn(
    columns: Columns,
    lengths: Lengths,
    shapes: Mapping[str, Architecture],
    random: np.random.Generator,
) -> Workload:
    """A workload with output lengths drawn from `lengths` (SamuLLM §4.1).

    Lengths that are known in advance are taken as they are. An answer ends at the node's
    `max_tokens` and at the model's context. Raises ApplicationError if a prompt leaves no room in
    the context; in a chain, the answer before it is cut to the room that is left.
    """
    workload: Workload = {}
    for name, each in columns.items():
        node, shape = each.node, shapes[each.node.model]
        name_of_lengths = node.lengths or node.model
        output = each.known_tokens
        if not output.all():
            found = lengths_for(lengths, name_of_lengths, f"the node {name!r}")
            output = np.where(output, output, found.draw(random, len(output)))
        output = np.minimum(output, node.max_tokens or shape.context_tokens)
        prompt = each.own_tokens.copy()
        for need in each.needs:
            np.add.at(prompt, need.rows, workload[need.node].output_tokens[need.answers])
        room = shape.context_tokens - 1
        if (too_long := np.flatnonzero(prompt > room)).size:
            raise ApplicationError(
                f"the node {name!r}: request {too_long[0]} has a prompt of {prompt[too_long[0]]:,} "
                f"tokens; it should be shorter than the context of {node.model}, "
                f"{shape.context_tokens:,}"
            )
        output = np.minimum(output, shape.context_tokens - prompt)
        for row in np.flatnonzero(each.previous >= 0):  # a predecessor comes first
            prompt[row] = min(prompt[row] + output[each.previous[row]], room)
            output[row] = min(output[row], shape.context_tokens - prompt[row])
        workload[name] = NodeWorkload(
            node, prompt, output, each.previous, each.needs, _flops(shape, prompt, output)
        )
    return workload


def _columns(node: Node, requests: tuple[NodeRequest, ...]) -> NodeColumns:
    template = tokens_of_template(node)
    own = [template + sum(_tokens(part) for _, part in each.parts) for each in requests]
    rows: dict[str, list[tuple[int, int]]] = {}
    for row, request in enumerate(requests):
        for _, other, index in request.answers:
            rows.setdefault(other, []).append((row, index))
    return NodeColumns(
        node,
        np.maximum(np.array(own, dtype=np.int64), 1),
        np.array([-1 if each.previous is None else each.previous for each in requests]),
        np.array([each.output_tokens or 0 for each in requests], dtype=np.int64),
        tuple(Needs(other, *np.array(pairs).T) for other, pairs in rows.items()),
    )


def _tokens(part: str | int) -> int:
    return part if isinstance(part, int) else approximate_tokens(part)


def _flops(shape: Architecture, prompt: Counts, output: Counts) -> npt.NDArray[np.float64]:
    """Products with the weights, and attention to all tokens before.

    SamuLLM's Eq. 1 counts a prefill as if all requests were as long as the longest of them.
    """
    tokens = (prompt + output).astype(float)
    flops = shape.flops_per_token * tokens + shape.attention_flops * tokens * tokens / 2
    return np.asarray(flops)
