"""Backends from their specification on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import msgspec

from metropolis.addresses import shown
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.http import JSONServer, bare_url, decode, parse_url
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.replay import REPLAY, Replay
from metropolis.llm.backends.scripted import SCRIPTED, Author, Scripted
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import (
    Backend,
    MalformedError,
    RateLimitedError,
    RefusedError,
    UnavailableError,
    UnreachableError,
)
from metropolis.types import MetropolisError


class _Model(msgspec.Struct):
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def connect(
    spec: str,
    model: str | None = None,
    *,
    named: Collection[str] = (),
    author: Author | None = None,
    sends_seed: bool = True,
) -> Backend:
    """The backend that `spec` names, and its `model`; `named` are those that requests may name.

    `author` writes the answers of `scripted`. `sends_seed` False omits sampling seeds, which some
    servers reject. `spec` is `scripted`, `replay:PATH`, `sglang:URL`, `vllm:URL`, `openai:URL`
    (through the `openai` client), or the bare http or https URL of any OpenAI-compatible server,
    which is probed for SGLang. Raises MetropolisError on anything else, and UnavailableError when a
    bare URL does not answer.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("http", "https"):
        kind, rest = ("sglang" if serves_sglang(spec) else "compatible"), spec
    elif kind.startswith("sglang+http"):
        kind, rest = "sglang", spec.removeprefix("sglang+")
    match kind:
        case "scripted" if not rest:
            return Scripted(author, name=model or SCRIPTED)
        case "replay" if rest:
            return Replay(rest, name=model or REPLAY)
        case "sglang":
            return SGLang(rest, model, named=named, sends_seed=sends_seed)
        case "compatible" | "vllm":
            is_vllm = kind == "vllm"
            return Compatible(rest, model, named=named, vllm=is_vllm, sends_seed=sends_seed)
        case "openai":
            return OpenAIClient(rest, model, named=named, sends_seed=sends_seed)
    raise MetropolisError(
        f"{shown(spec)!r} names no LLM; write scripted, replay:PATH, sglang:URL, vllm:URL, "
        "openai:URL or the URL of a server"
    )


def serves_sglang(url: str) -> bool:
    """Whether the server at `url` is SGLang; raises UnavailableError if none answers."""
    with ThreadPoolExecutor(1) as thread:  # an event loop may be running in this thread
        return thread.submit(asyncio.run, _serves_sglang(url)).result()


async def _serves_sglang(url: str) -> bool:
    server = JSONServer("the server", bare_url(parse_url(url)).removesuffix("/v1"))
    try:
        content = await server.content("v1/models")
    except (UnreachableError, MalformedError) as error:
        raise UnavailableError(f"{error}; is it the right server, and running?") from None
    except (RefusedError, RateLimitedError):
        return False  # the server requires a key, or lacks the route: not SGLang as we start it
    finally:
        await server.close()
    try:
        listed = decode(content, _Models, server.called, "the check")
    except MalformedError:
        return False
    return any(model.owned_by == "sglang" for model in listed.data)
