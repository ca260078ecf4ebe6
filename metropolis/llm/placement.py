"""The headers `X-Metropolis-*`, which give a metropolis gateway the context of a request.

1. The program is the agent-step, as in simulation: its calls form one chain or graph.
2. Upstream is the function of the last call that this one waited for within its agent-step. The
   first calls of an agent-step have none: they start a program.
3. Step is the step; speculative requests rank below all others.
4. End and Stages-Left are not sent, as the last call of an agent-step is known only afterwards.
   The gateway ends a program that sends no more requests.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from metropolis.llm.base import Request

PREFIX = "X-Metropolis-"
GATEWAY = f"{PREFIX}Gateway"
"""The header that identifies a metropolis gateway when it lists its models."""
NAME_CHARACTERS_MAX = 200
"""Bounds the length of names, which metrics and policies keep."""
SPECULATIVE_STEP = 1 << 30
"""Larger than any step."""
DIGEST_CHARACTERS = 16


def headers_of(request: Request) -> dict[str, str]:
    """The headers of `request` for a gateway; values are names in the sense of `is_name`."""
    step = request.step + (SPECULATIVE_STEP if request.speculative else 0)
    headers = {
        f"{PREFIX}Program": name_of(f"{request.program} at {request.step}"),
        f"{PREFIX}Function": name_of(request.function),
        f"{PREFIX}Step": str(step),
    }
    if request.upstream is not None:
        headers[f"{PREFIX}Upstream"] = name_of(request.upstream)
    return headers


def is_name(text: str) -> bool:
    """Whether `text` is valid; header bytes that are not UTF-8 are unprintable surrogates."""
    is_short = 0 < len(text) <= NAME_CHARACTERS_MAX
    return is_short and text.isprintable() and text == text.strip()


def name_of(text: str) -> str:
    """`text` if it is a name, else percent-encoded; if too long, cut and ended by its digest."""
    if is_name(text):
        return text
    written = quote(text, safe="", errors="replace")
    if 0 < len(written) <= NAME_CHARACTERS_MAX:
        return written
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]
    return f"{written[: NAME_CHARACTERS_MAX - DIGEST_CHARACTERS - 1]}~{digest}"
