"""From what a user writes to a backend."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException

import msgspec

from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.http import CHECK_S, bare_url, parse_url
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.scripted import Author, Scripted
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import Backend, UnavailableError
from metropolis.types import MetropolisError


def connect(spec: str, model: str | None = None, *, author: Author | None = None) -> Backend:
    """The backend that `spec` names; `author` writes for the scripted one.

    `scripted`, `replay:PATH`, `sglang:URL`, `vllm:URL`, `openai:URL` (through the `openai`
    client), or the bare http or https URL of any OpenAI-compatible server, which is asked whether
    it is SGLang. Raises MetropolisError on anything else, and UnavailableError when a bare URL
    does not answer.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("http", "https"):
        kind, rest = ("sglang" if serves_sglang(spec) else "compatible"), spec
    elif kind.startswith("sglang+http"):
        kind, rest = "sglang", spec.removeprefix("sglang+")
    match kind:
        case "scripted" if not rest:
            return Scripted(author)
        case "replay" if rest:
            return Replay(rest)
        case "sglang":
            return SGLang(rest, model)
        case "compatible" | "vllm":
            return Compatible(rest, model, vllm=kind == "vllm")
        case "openai":
            return OpenAIClient(rest, model)
    raise MetropolisError(
        f"{spec!r} names no LLM; write scripted, replay:PATH, sglang:URL, vllm:URL, openai:URL "
        "or the URL of a server"
    )


def serves_sglang(url: str) -> bool:
    """Whether an SGLang server answers at `url`; any server that answers at all will do."""
    bare = bare_url(parse_url(url))
    probe = f"{bare.removesuffix('/v1')}/v1/models"
    try:
        with urllib.request.urlopen(probe, timeout=CHECK_S) as response:
            listed = msgspec.json.decode(response.read(1 << 20))
    except urllib.error.HTTPError:
        return False  # it wants a key, or has no such page: not SGLang as we start it
    except msgspec.DecodeError:
        return False
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"{bare} cannot be reached: {getattr(error, 'reason', error)}; is the server running?"
        ) from None
    data = listed.get("data") if isinstance(listed, dict) else None
    return isinstance(data, list) and any(
        isinstance(model, dict) and model.get("owned_by") == "sglang" for model in data
    )
