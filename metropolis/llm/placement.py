"""How a request tells a gateway of metropolis its place: the headers `X-Metropolis-*`.

1. The program is the agent-step, as in virtual time: its calls form one chain or graph.
2. Upstream is the function of the last call that this one waited for within its agent-step. The
   first calls of an agent-step have none: they begin a program.
3. Step is the step; that of a speculative request ranks below those of all others.
4. End and Stages-Left are not sent: which call of an agent-step is the last is known afterwards.
   The gateway ends a program of which nothing comes any more.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from metropolis.llm.base import Request

PREFIX = "X-Metropolis-"
GATEWAY = f"{PREFIX}Gateway"
"""The header by which a gateway of metropolis is recognised when it lists its models."""
NAME_CHARACTERS_MAX = 200
"""Metrics and policies keep names."""
SPECULATIVE_STEP = 1 << 30
"""Beyond any step."""
DIGEST_CHARACTERS = 16


def headers_of(request: Request) -> dict[str, str]:
    """What a gateway is told of `request`; values are names in the sense of `is_name`."""
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
    """Bytes of a header that are no UTF-8 come as surrogates, which are not printable."""
    is_short = 0 < len(text) <= NAME_CHARACTERS_MAX
    return is_short and text.isprintable() and text == text.strip()


def name_of(text: str) -> str:
    """`text` if it is a name, else percent-encoded; a long one ends with a digest of the whole."""
    if is_name(text):
        return text
    written = quote(text, safe="", errors="replace")
    if 0 < len(written) <= NAME_CHARACTERS_MAX:
        return written
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]
    return f"{written[: NAME_CHARACTERS_MAX - DIGEST_CHARACTERS - 1]}~{digest}"
