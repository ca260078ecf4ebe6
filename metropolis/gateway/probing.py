"""Detects an engine's traits: its kind, its support of priorities, the size of its KV cache.

`metropolis serve torch` tells its kind and size in its list of models.

SGLang reports all of them in its server info. vLLM reports the KV cache in a metric; a request for
one token shows whether it refuses priorities. It may accept priorities and still ignore them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from metropolis.llm.backends.http import JSONServer
from metropolis.llm.base import LLMError, RefusedError

SGLANG, VLLM, METROPOLIS, COMPATIBLE = "sglang", "vllm", "metropolis", "compatible"
KINDS = (SGLANG, VLLM, METROPOLIS, COMPATIBLE)
NAMES = {SGLANG: "SGLang", VLLM: "vLLM", METROPOLIS: "metropolis serve"}
TEST_PROMPT = "a"
TEST_S = 2.0
"""Timeout of the test of priorities: a refusal is immediate, an answer may have to queue."""
INFO_S = 5.0
SERVER_INFO = ("server_info", "get_server_info")
"""The second is the older name."""
CACHE = b"vllm:cache_config_info{"
CACHE_TOKENS = re.compile(rb'\bkv_cache_size_tokens="(\d{1,15})"')
CACHE_BLOCKS = re.compile(rb'\bnum_gpu_blocks="(\d{1,10})"')
BLOCK_TOKENS = re.compile(rb'\bblock_size="(\d{1,7})"')


class Model(msgspec.Struct):
    """A model that an engine serves."""

    id: str = ""
    owned_by: str | None = None
    kv_capacity_tokens: int | None = None
    input_layers: list[int] = []
    """The layers whose inputs (E) are kept beside its KV."""
    is_receiver: bool = False
    """Whether it may start from another model's cache."""


class _ServerInfo(msgspec.Struct):
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    max_total_num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Traits:
    """What the gateway knows about an engine."""

    kind: str = COMPATIBLE
    takes_priorities: bool = False
    is_low_first: bool = True
    """Whether low values go first."""
    capacity_tokens: int | None = None
    """Size of the KV cache; None if unknown."""
    why_not: str = ""
    """Why it gets no priorities."""
    kept_inputs: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By model, the layers whose inputs (E) it keeps beside the KV."""
    receivers: frozenset[str] = frozenset()
    """Its models that may start from another model's cache."""

    def __str__(self) -> str:
        """Return a description for users; empty for an engine of unknown kind."""
        if self.kind == COMPATIBLE:
            return ""
        words = [NAMES[self.kind]]
        if self.takes_priorities:
            words.append("gets priorities" + ("" if self.is_low_first else ", high ones first"))
        else:
            words.append(f"gets no priorities, because {self.why_not}")
        if self.capacity_tokens is not None:
            words.append(f"KV cache of {self.capacity_tokens:,} tokens")
        return ", ".join(words)


def named(kind: str | None) -> Traits:
    """Return the assumed traits of an engine whose kind the user gives, before it is probed."""
    if kind in NAMES:
        return Traits(kind, takes_priorities=True)
    return Traits()


def kind_of(models: Sequence[Model]) -> str:
    """Return the kind of the engine that serves `models`."""
    owners = {model.owned_by for model in models}
    return next((kind for kind in NAMES if kind in owners), COMPATIBLE)


async def traits_of(
    engine: JSONServer, kind: str, models: Sequence[Model], *, is_named: bool
) -> Traits:
    """Probe an engine of `kind` that lists `models`, at least one.

    `is_named`: the user gave the kind, which implies priorities.
    """
    model = models[0]
    if kind == SGLANG:
        return await _sglang(engine, is_named=is_named)
    if kind == VLLM:
        capacity_tokens = await _vllm_capacity(engine)
        if await _refuses_priorities(engine, model.id):
            why_not = "it refuses them: start it with --scheduling-policy priority"
            return Traits(VLLM, capacity_tokens=capacity_tokens, why_not=why_not)
        return Traits(VLLM, takes_priorities=True, capacity_tokens=capacity_tokens)
    if kind == METROPOLIS:
        return Traits(
            METROPOLIS,
            takes_priorities=True,
            capacity_tokens=_positive(model.kv_capacity_tokens),
            kept_inputs={each.id: frozenset(each.input_layers) for each in models},
            receivers=frozenset(each.id for each in models if each.is_receiver),
        )
    return Traits()


async def _sglang(engine: JSONServer, *, is_named: bool) -> Traits:
    info = await _server_info(engine)
    if info is None:
        why_not = "it does not report its settings: use sglang:URL if low values go first"
        return Traits(SGLANG, takes_priorities=is_named, why_not=why_not)
    capacity_tokens = info.max_total_num_tokens
    return Traits(
        SGLANG,
        takes_priorities=info.enable_priority_scheduling,
        is_low_first=info.schedule_low_priority_values_first,
        capacity_tokens=_positive(capacity_tokens),
        why_not="it was started without --enable-priority-scheduling",
    )


async def _server_info(engine: JSONServer) -> _ServerInfo | None:
    for path in SERVER_INFO:
        try:
            async with asyncio.timeout(INFO_S):
                return await engine.get(path, _ServerInfo)
        except RefusedError:
            continue
        except (LLMError, TimeoutError):
            return None
    return None


def _positive(tokens: int | None) -> int | None:
    return tokens if tokens is not None and tokens > 0 else None


async def _vllm_capacity(engine: JSONServer) -> int | None:
    """Return the tokens that fit the KV caches of all its data-parallel ranks."""
    try:
        async with asyncio.timeout(INFO_S):
            metrics = await engine.content("metrics")
    except (LLMError, TimeoutError):
        return None
    return sum(map(_cache_tokens, metrics.splitlines())) or None


def _cache_tokens(line: bytes) -> int:
    if not line.startswith(CACHE):
        return 0
    if tokens := CACHE_TOKENS.search(line):
        return int(tokens[1])
    blocks, size = CACHE_BLOCKS.search(line), BLOCK_TOKENS.search(line)
    return int(blocks[1]) * int(size[1]) if blocks and size else 0


async def _refuses_priorities(engine: JSONServer, model: str) -> bool:
    body = {"model": model, "prompt": TEST_PROMPT, "max_tokens": 1, "priority": 1}
    try:
        async with asyncio.timeout(TEST_S):
            await engine.send("v1/completions", body, "the test of priorities")
    except LLMError as error:
        return "priority" in str(error).rpartition("HTTP")[2].lower()
    except TimeoutError:
        return False
    return False
