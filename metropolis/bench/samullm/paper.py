"""SamuLLM's machine, applications and figures (§5); what the paper leaves open is assumed here.

Assumed: the distributions of lengths beyond the means and extremes that the paper gives, and what
vLLM of that time adds to each iteration. The latter, like the loading times, fits the four times of
chatglm3-6b in §5.1, so these are no independent check. Of vicuna-13b's two times, 92 s is one, for
an assumed mean output; 128 s is the paper's own estimate, and its 30 s of loading are used here.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist

import numpy as np

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import EngineOverhead, Machine

MACHINE = Machine(overhead=EngineOverhead(iteration_ms=4.0, sequence_ms=0.07))
"""8 A100-80G, pairs connected by NVLink."""
ENSEMBLE = (
    "vicuna-13b",
    "oasst-pythia-12b",
    "alpaca-13b",
    "baize-13b",
    "koala-13b",
    "dolly-12b",
    "mpt-7b",
    "chatglm3-6b",
    "stablelm-7b",
)
ROUTING = {
    "llama-2-70b": 408,
    "mixtral-8x7b": 1267,
    "wizardlm-13b": 2068,
    "codellama-34b": 456,
    "mistral-7b": 2657,
}
"""Model -> requests (Table 1)."""
CHUNK_TOKENS = 2048
SUMMARY_INSTRUCTIONS, EVALUATION_INSTRUCTIONS = 100, 300
"""Tokens of the prompts beside a chunk and a summary; assumed."""

Counts = np.ndarray


def lengths(mean: float, most: int, sigma: float, least: int = 1, count: int = 10_000) -> Counts:
    """Quantiles of a log-normal distribution, cut at `least` and `most`, with that mean."""
    shape = np.exp(
        sigma * np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    )
    low, high = 0.0, float(most)
    while high - low > 1e-6 * most:
        middle = (low + high) / 2
        found = np.clip(np.round(middle * shape), least, most)
        low, high = (middle, high) if found.mean() < mean else (low, middle)
    return np.clip(np.round(high * shape), least, most).astype(np.int64)


MIX_INSTRUCT_INPUTS = lengths(21, 127, 0.6, least=5)
MIX_INSTRUCT = LengthDistribution.of(lengths(180, 490, 0.8))
"""§5.1: inputs of 5 to 127 tokens, 21 on average; outputs of at most 490, 180 on average."""
ROUTER_BENCH_INPUTS = lengths(310, 577, 0.5, least=9)
ROUTER_BENCH = LengthDistribution.of(lengths(199, 1585, 0.9, least=3))
"""§5.2: inputs of 9 to 577, 310 on average; outputs of 3 to 1585, 199 on average."""
NO_ROBOTS = LengthDistribution.of(lengths(250, 2048, 0.9))
"""Answers of chat models to requests without a limit (§2); the mean is assumed."""
DISTRIBUTIONS = {"mix_instruct": MIX_INSTRUCT, "router_bench": ROUTER_BENCH, "no_robots": NO_ROBOTS}


def ensembling(requests: int, limit: int) -> Application:
    """Nine models answer the same requests (§5.1)."""
    return Application(
        f"ensembling {requests:,} limit {limit}",
        {"questions": _questions(requests)},
        tuple(_ensemble_node(model, limit) for model in ENSEMBLE),
    )


def routing(known: bool) -> Application:
    """Each request goes to one of five models (§5.2, Table 1)."""
    random = np.random.default_rng(0)
    sources, nodes = {}, []
    for model, count in ROUTING.items():
        name = _name(model)
        inputs = random.choice(ROUTER_BENCH_INPUTS, count).tolist()
        outputs = ROUTER_BENCH.draw(random, count).tolist()
        sources[f"for_{name}"] = tuple(
            Item(f"{index}", (tokens,), (outputs[index],) if known else None)
            for index, tokens in enumerate(inputs)
        )
        limit = None if known else 4096
        nodes.append(Node(name, model, (f"for_{name}",), max_tokens=limit, lengths="router_bench"))
    return Application(f"routing, lengths {'' if known else 'un'}known", sources, tuple(nodes))


def chain_summary(documents: int, evaluations: int, limit: int) -> Application:
    """A chain of summaries for each document, and evaluations of the last (§5.3)."""
    return Application(
        f"chain summary {documents} x{evaluations} limit {limit}",
        {"documents": _documents(documents)},
        _summary_nodes(evaluations, limit),
    )


def mixed(
    documents: int, requests: int, limit: int, evaluations: int = 4, summary_limit: int = 900
) -> Application:
    """Chain summary and ensembling at the same time (§5.4)."""
    return Application(
        f"mixed {documents}, {requests:,} limit {limit}",
        {"documents": _documents(documents), "questions": _questions(requests)},
        (
            *_summary_nodes(evaluations, summary_limit),
            *(_ensemble_node(model, limit) for model in ENSEMBLE),
        ),
    )


def chunk_counts(documents: int) -> list[int]:
    """Chunks of each document: a Pareto distribution through what §5.3 gives.

    The median is 3; the longest of 100 documents has 60 chunks, that of 300 has 201. Between and
    beyond, the longest grows with the same power of the number of documents.
    """
    longest = 60 * (documents / 100) ** (log(201 / 60) / log(3))
    power = log(longest / 3) / log(documents)
    upper = [1 - (index + 0.5) / documents for index in range(documents)]
    return [max(1, round(3 * (2 * share) ** -power)) for share in upper]


def _documents(count: int) -> tuple[Item, ...]:
    part = CHUNK_TOKENS + SUMMARY_INSTRUCTIONS
    chunks = np.random.default_rng(0).permutation(chunk_counts(count)).tolist()
    return tuple(Item(f"{index}", (part,) * number) for index, number in enumerate(chunks))


def _questions(count: int) -> tuple[Item, ...]:
    inputs = np.random.default_rng(0).choice(MIX_INSTRUCT_INPUTS, count).tolist()
    return tuple(Item(f"{index}", (tokens,)) for index, tokens in enumerate(inputs))


def _ensemble_node(model: str, limit: int) -> Node:
    return Node(_name(model), model, ("questions",), max_tokens=limit, lengths="mix_instruct")


def _summary_nodes(evaluations: int, limit: int) -> tuple[Node, ...]:
    words = " ".join(["word"] * EVALUATION_INSTRUCTIONS)
    return (
        Node(
            "summarize", "vicuna-13b", ("documents",), chain=True, max_tokens=limit,
            lengths="no_robots",
        ),
        Node(
            "evaluate", "llama-2-70b", ("summarize",), template=f"{words} {{summarize}}",
            times=evaluations, max_tokens=limit, lengths="no_robots",
        ),
    )  # fmt: skip


def _name(model: str) -> str:
    return model.replace("-", "_")
