"""Applications: models as nodes of a graph, whose requests contain the answers of other nodes.

An application is data. Sources hold items; an item has parts, in order. A node has inputs, which
are sources and other nodes, and sends requests to one model:

* without `chain`, one request for each part of a source's item and for each result of a node;
* with `chain`, the parts of an item one after another, each with the answer to the one before it
  (the self-loop of a chain summary, SamuLLM §3). The result is the last answer, or all with
  `results="all"`;
* of several inputs, `join="concatenate"` makes one request of what has the same key, `join="each"`
  one request of each;
* `times` repeats every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from string import Formatter
from typing import Literal, TypeAlias

from metropolis.llm.tokens import approximate_tokens
from metropolis.names import did_you_mean
from metropolis.types import MetropolisError

PREVIOUS = "previous"
"""The name of the answer before, in the template of a chain."""
TOKENS_MAX = 1 << 22
REQUESTS_MAX = 1 << 20
"""Maximum requests of an application."""

Part: TypeAlias = str | int
"""A text, or its number of tokens where only a plan is made."""


class ApplicationError(MetropolisError):
    """An application that cannot be planned or run."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a source, from whose parts requests are made."""

    key: str
    parts: tuple[Part, ...]
    output_tokens: tuple[int, ...] | None = None
    """The lengths of the answers to its parts, where they are known in advance."""


@dataclass(frozen=True, slots=True)
class Node:
    """A model, and the requests that it gets; see the head of the module."""

    name: str
    model: str
    inputs: tuple[str, ...]
    template: str | None = None
    """The prompt, with {INPUT} for each input and {previous} in a chain; None: all of them,
    separated by empty lines."""
    join: Literal["concatenate", "each"] = "concatenate"
    chain: bool = False
    results: Literal["last", "all"] = "last"
    times: int = 1
    max_tokens: int | None = None
    """The longest answer; None: what the model's context leaves."""
    lengths: str | None = None
    """The name of its distribution of output lengths; None: the model's."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One request. Its prompt is the template with its own parts and the answers it needs."""

    key: str
    parts: tuple[tuple[str, Part], ...]
    """(input, part) of each part of a source's item that the prompt contains."""
    answers: tuple[tuple[str, str, int], ...]
    """(input, node, request's index): the answers of other nodes that it contains."""
    previous: int | None = None
    """The request of the same node before it in a chain."""
    output_tokens: int | None = None
    """The length of its answer, if it is known in advance."""


@dataclass(frozen=True)
class Application:
    """Sources and nodes. Raises ApplicationError if they do not fit together."""

    name: str
    sources: Mapping[str, tuple[Item, ...]]
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        _check(self)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the nodes, each once."""
        return tuple(dict.fromkeys(node.model for node in self.nodes))

    @property
    def order(self) -> tuple[Node, ...]:
        """The nodes, each after those whose answers it needs."""
        by_name = {node.name: node for node in self.nodes}
        needs = {node.name: [one for one in node.inputs if one in by_name] for node in self.nodes}
        try:
            return tuple(by_name[name] for name in TopologicalSorter(needs).static_order())
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise ApplicationError(
                f"{self.name}: the nodes need each other's answers: {circle}; a node that reads "
                "its own answers is a chain (chain = true)"
            ) from error

    def requests(self) -> dict[str, tuple[NodeRequest, ...]]:
        """All requests by node, in topological order. Raises ApplicationError if one has none."""
        made: dict[str, tuple[NodeRequest, ...]] = {}
        left = REQUESTS_MAX
        for node in self.order:
            made[node.name] = tuple(islice(_requests(self, node, made), left + 1))
            left -= len(made[node.name])
            if left < 0:
                raise ApplicationError(
                    f"{self.name}: the node {node.name!r}: with its requests there are more than "
                    f"{REQUESTS_MAX:,}; use fewer items or a smaller value of times"
                )
            if not made[node.name]:
                raise ApplicationError(
                    f"{self.name}: the node {node.name!r} has no requests: no key occurs in all of "
                    f"its inputs {', '.join(node.inputs)}"
                )
        return made

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)


def template_tokens(node: Node) -> int:
    """Approximate tokens of the template itself."""
    if node.template is None:
        return 0
    return approximate_tokens("".join(text for text, *_ in Formatter().parse(node.template)))


def prompt_of(node: Node, request: NodeRequest, answers: Mapping[tuple[str, int], str]) -> str:
    """The prompt's text; `answers`: those that it needs, by node and index.

    Raises ApplicationError if a part has no text.
    """
    found: dict[str, list[str]] = {name: [] for name in (*node.inputs, PREVIOUS)}
    for name, part in request.parts:
        if not isinstance(part, str):
            raise ApplicationError(
                f"the item {request.key!r} of {name!r} has a number of tokens and no text; a plan "
                "can be made of it, but it cannot be run"
            )
        found[name].append(part)
    for name, other, index in request.answers:
        found[name].append(answers[other, index])
    if request.previous is not None:
        found[PREVIOUS].append(answers[node.name, request.previous])
    texts = {name: "\n\n".join(each) for name, each in found.items()}
    if node.template is not None:
        return node.template.format_map(texts)
    order = (PREVIOUS, *node.inputs)
    return "\n\n".join(texts[name] for name in order if texts[name])


# --- requests

_Group: TypeAlias = tuple[str, list[NodeRequest]]
"""A key, and its requests in order."""


def _requests(
    application: Application, node: Node, made: Mapping[str, tuple[NodeRequest, ...]]
) -> Iterable[NodeRequest]:
    groups = [_of_input(application, name, made) for name in node.inputs]
    if node.join == "concatenate" and len(groups) > 1:
        groups = [_joined(groups)]
    index = 0
    for group in groups:
        for key, requests in group:
            for copy in range(node.times):
                for number, request in enumerate(requests):
                    yield NodeRequest(
                        key if node.times == 1 else f"{key}#{copy + 1}",
                        request.parts,
                        request.answers,
                        index - 1 if node.chain and number else None,
                        request.output_tokens,
                    )
                    index += 1


def _of_input(
    application: Application, name: str, made: Mapping[str, tuple[NodeRequest, ...]]
) -> list[_Group]:
    if name in application.sources:
        return [(item.key, _of_item(name, item)) for item in application.sources[name]]
    groups = dict[str, list[NodeRequest]]()
    is_last = application.node(name).results == "last"
    followed = {request.previous for request in made[name]} if is_last else set()
    for index, request in enumerate(made[name]):
        if index not in followed:
            one = NodeRequest(request.key, (), ((name, name, index),))
            groups.setdefault(request.key, []).append(one)
    return list(groups.items())


def _of_item(name: str, item: Item) -> list[NodeRequest]:
    lengths = item.output_tokens or (None,) * len(item.parts)
    return [
        NodeRequest(item.key, ((name, part),), (), None, tokens)
        for part, tokens in zip(item.parts, lengths, strict=True)
    ]


def _joined(groups: list[list[_Group]]) -> list[_Group]:
    """One request of all that has a key, for keys that occur in every group."""
    by_key = [dict(group) for group in groups]
    joined = []
    for key in by_key[0]:
        if all(key in each for each in by_key):
            all_of_key = [request for each in by_key for request in each[key]]
            parts = tuple(part for request in all_of_key for part in request.parts)
            answers = tuple(answer for request in all_of_key for answer in request.answers)
            joined.append((key, [NodeRequest(key, parts, answers)]))
    return joined


# --- checks


def _check(application: Application) -> None:
    where, nodes = application.name, application.nodes
    if not nodes:
        raise ApplicationError(f"{where}: has no nodes")
    names = Counter([*application.sources, *(node.name for node in nodes)])
    for name, count in names.items():
        if count > 1:
            raise ApplicationError(f"{where}: {count} sources or nodes are called {name!r}")
        if not name.isidentifier() or name == PREVIOUS:
            raise ApplicationError(
                f"{where}: {name!r} cannot be a name; use letters, digits and underscores, and not "
                f"{PREVIOUS!r}"
            )
    for source, items in application.sources.items():
        _check_items(f"{where}: the source {source!r}", items)
    for node in nodes:
        _check_node(f"{where}: the node {node.name!r}", node, names)
    if application.order:
        application.requests()


def _check_items(where: str, items: tuple[Item, ...]) -> None:
    if not items:
        raise ApplicationError(f"{where} has no items")
    if repeated := [key for key, count in Counter(each.key for each in items).items() if count > 1]:
        raise ApplicationError(f"{where} has several items with the key {repeated[0]!r}")
    for item in items:
        if not item.parts:
            raise ApplicationError(f"{where}: the item {item.key!r} has no parts")
        if item.output_tokens is not None and len(item.output_tokens) != len(item.parts):
            raise ApplicationError(
                f"{where}: the item {item.key!r} has {len(item.parts)} parts and "
                f"{len(item.output_tokens)} output_tokens"
            )
        for number in (*item.parts, *(item.output_tokens or ())):
            if isinstance(number, int) and not 1 <= number <= TOKENS_MAX:
                raise ApplicationError(
                    f"{where}: the item {item.key!r} has {number} tokens; they must lie in "
                    f"[1, {TOKENS_MAX}]"
                )


def _check_node(where: str, node: Node, names: Iterable[str]) -> None:
    if not node.inputs:
        raise ApplicationError(f"{where} has no inputs; name a source or another node")
    for name in node.inputs:
        if name not in names:
            meant = did_you_mean(name, names)
            raise ApplicationError(f"{where}: inputs: there is no source or node {name!r}{meant}")
        if name == node.name:
            raise ApplicationError(
                f"{where} needs its own answers; for the parts of an item one after another, write "
                "chain = true"
            )
    if len(set(node.inputs)) < len(node.inputs):
        raise ApplicationError(f"{where} names an input twice")
    if node.chain and len(node.inputs) > 1 and node.join == "concatenate":
        raise ApplicationError(f"{where} is a chain, so it has one input, or join = 'each'")
    for field, number in (("times", node.times), ("max_tokens", node.max_tokens)):
        if number is not None and not 1 <= number <= TOKENS_MAX:
            raise ApplicationError(
                f"{where}: {field} is {number}; it must lie in [1, {TOKENS_MAX}]"
            )
    _check_template(where, node)


def _check_template(where: str, node: Node) -> None:
    if node.template is None:
        return
    known = {*node.inputs, PREVIOUS} if node.chain else {*node.inputs}
    try:
        parsed = [each[1:] for each in Formatter().parse(node.template) if each[1] is not None]
    except ValueError as error:
        raise ApplicationError(f"{where}: the template is not a valid format: {error}") from error
    fields = {field for field, *_ in parsed}
    for field, spec, conversion in parsed:
        if field not in known or spec or conversion:
            mark = f"!{conversion}" if conversion else ""
            raise ApplicationError(
                f"{where}: the template has {{{field}{mark}{spec and f':{spec}'}}}; it may have "
                f"{', '.join(f'{{{name}}}' for name in sorted(known))}; write {{{{ for a brace"
            )
    if missing := sorted(known - fields):
        raise ApplicationError(f"{where}: the template lacks {{{missing[0]}}}")
