"""Section `served`: times to first token of `metropolis serve torch` behind the gateway.

Each context is asked about in one of two ways, in turn: the receiver alone, which computes all
layers, or the sender first and then the receiver, which starts from the sender's cache.
"""

from __future__ import annotations

import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from metropolis.bench import METROPOLIS, need, server
from metropolis.bench.droidspeak.tables import print_table
from metropolis.reuse.plan import Plan

KIND = "measured"
CONTEXT_WORDS = (500, 1000, 2000)
"""A word is a token of the example's pairs."""
TURNS = 20
"""Number of contexts for each of the two ways."""
STRIDE = 37
"""Words between the beginnings of two contexts, so that they share none."""
LOSS = 0.02
REUSED = ("metropolis_reused_tokens_total", "metropolis_reused_bytes_total")
"""Metrics of the gateway."""


def runs(quick: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(_lengths(quick))


def measure(
    folder: Path, plan: Plan, quick: bool, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """One row for each length of context. Raises MetropolisError if a server does not start."""
    need("torch", "torch", "transformers", "aiohttp")
    need("openai", "openai")
    reuse = f"droidspeak:plans={folder / 'plan.json'},loss={LOSS}"
    models = (
        f"--model={plan.sender}={folder / 'base'}",
        f"--model={plan.receiver}={folder / 'receiver'}",
    )
    engine_command = [*METROPOLIS, "serve", "torch", *models, "--reuse", reuse, "--port", "0"]
    rows = []
    with server([*engine_command, "--threads", "1"]) as engine:
        gateway_command = [*METROPOLIS, "gateway", "--engine", engine, "--reuse", reuse]
        with server([*gateway_command, "--port", "0"]) as gateway:
            for number, tokens in enumerate(_lengths(quick)):
                first = 2 * TURNS * number
                rows.append(_measured(gateway, engine, folder, plan, tokens, first, quick))
                advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the table."""
    print_table(
        console,
        "Measured: time to first token of the receiver, by the openai client through the gateway",
        [
            "prompt\ntokens", "TTFT, ms\nalone", "after\nsender", "\nfaster",
            "prefill, ms\nalone", "after\nsender", "\nfaster", "by the\nplan",
            "reused\ntokens", "reused\nMB",
        ],
        (
            (
                f"{row['prompt_tokens']:,}",
                f"{row['alone_ttft_ms']:.1f}",
                f"{row['after_sender_ttft_ms']:.1f}",
                f"{row['alone_ttft_ms'] / row['after_sender_ttft_ms']:.2f} x",
                f"{row['alone_prefill_ms']:.1f}",
                f"{row['after_sender_prefill_ms']:.1f}",
                f"{row['alone_prefill_ms'] / row['after_sender_prefill_ms']:.2f} x",
                f"{1 / row['plan_prefill_share']:.2f} x",
                f"{row['reused_tokens']:,.0f}",
                f"{row['reused_bytes'] / 1e6:.2f}",
            )
            for row in rows
        ),
        "Medians; the contexts differ. Prefills by the engine's metrics; what a request reused by "
        "the gateway's.",
    )  # fmt: skip


def _measured(
    gateway: str, engine: str, folder: Path, plan: Plan, tokens: int, first: int, quick: bool
) -> dict[str, Any]:
    """Measure with contexts of `tokens` tokens, numbered from `first`, since none may recur."""
    from metropolis.torch_engine.examples import load_examples

    examples = load_examples(folder / "test.jsonl")
    words = " ".join(dict.fromkeys(example.context for example in examples)).split()
    ttft_ms: dict[bool, list[float]] = {False: [], True: []}
    prefill_ms: dict[bool, list[float]] = {False: [], True: []}
    reused, prompt_tokens = dict.fromkeys(REUSED, 0.0), 0
    for number in range(first, first + 2 * (2 if quick else TURNS)):
        begin = number * STRIDE % len(words)
        prompt = " ".join(islice(cycle(words), begin, begin + tokens))
        prompt += f"\n\n{examples[0].question}"
        is_after_sender = number % 2 == 1
        if is_after_sender:
            _ask(gateway, plan.sender, prompt)
        before = _metrics(engine, plan.receiver), _metrics(gateway)
        ttft_s, prompt_tokens = _ask(gateway, plan.receiver, prompt)
        after = _metrics(engine, plan.receiver), _metrics(gateway)
        prefill_s = "metropolis_engine_prefill_seconds_sum"
        prefill_ms[is_after_sender].append(1000 * (after[0][prefill_s] - before[0][prefill_s]))
        ttft_ms[is_after_sender].append(1000 * ttft_s)
        for name in REUSED:
            reused[name] += after[1][name] - before[1][name]
    point = plan.fastest(LOSS)
    return {
        "prompt_tokens": prompt_tokens,
        "alone_ttft_ms": median(ttft_ms[False]),
        "after_sender_ttft_ms": median(ttft_ms[True]),
        "alone_prefill_ms": median(prefill_ms[False]),
        "after_sender_prefill_ms": median(prefill_ms[True]),
        "plan_prefill_share": None if point is None else point.prefill_share,
        "reused_tokens": reused[REUSED[0]] / len(ttft_ms[True]),
        "reused_bytes": reused[REUSED[1]] / len(ttft_ms[True]),
    }


def _ask(url: str, model: str, prompt: str) -> tuple[float, int]:
    """The seconds until the first token, and the tokens of the prompt."""
    from openai import OpenAI

    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        began_s = time.perf_counter()
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=2,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        first_s, tokens = None, 0
        for chunk in stream:
            first_s = first_s or time.perf_counter() - began_s
            tokens = chunk.usage.prompt_tokens if chunk.usage else tokens
    assert first_s is not None
    return first_s, tokens


def _metrics(url: str, model: str | None = None) -> defaultdict[str, float]:
    """The counters and sums of a server, of the labels with `model` if it is given."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{url}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    found: defaultdict[str, float] = defaultdict(float)
    for family in families:
        for sample in family.samples:
            if model is None or sample.labels.get("model") == model:
                found[sample.name] += sample.value
    return found


def _lengths(quick: bool) -> Sequence[int]:
    return CONTEXT_WORDS[:1] if quick else CONTEXT_WORDS
