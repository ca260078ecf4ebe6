"""The context of a request for a metropolis gateway: a value, or headers `X-Metropolis-*`.

1. The program is the agent-step, as in simulation: its calls form one chain or graph.
2. Upstream is the function of the last call that this one waited for within its agent-step. The
   first calls of an agent-step have none: they start a program.
3. Speculative requests, which may be sent in vain, say so.
4. End and Stages-Left are not sent, as the last call of an agent-step is known only afterwards.
   The gateway ends a program that sends no more requests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

from metropolis.llm.base import Request

PREFIX = "X-Metropolis-"
GATEWAY = f"{PREFIX}Gateway"
"""The header that identifies a metropolis gateway when it lists its models."""
NAME_CHARACTERS_MAX = 200
"""Bounds the length of names, which metrics and policies keep."""
DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """A request's place in its program; None where it is unknown."""

    program: str | None = None
    function: str | None = None
    upstream: str | None = None
    """The function whose answer led to the request."""
    step: int = 0
    stages_left: int | None = None
    """Remaining stages of the program, this one included."""
    is_last: bool = False
    """Whether it ends its program."""
    speculative: bool = False
    """Whether it may be sent in vain."""


def placement_of(request: Request) -> Placement:
    """The placement of `request`; names are valid in the sense of `is_name`."""
    return Placement(
        name_of(f"{request.program} at {request.step}"),
        name_of(request.function),
        None if request.upstream is None else name_of(request.upstream),
        request.step,
        speculative=request.speculative,
    )


def headers_of(request: Request) -> dict[str, str]:
    """The headers of `request` for a gateway."""
    placement = placement_of(request)
    fields = {
        "Program": placement.program,
        "Function": placement.function,
        "Step": str(placement.step),
        "Upstream": placement.upstream,
        "Speculative": "true" if placement.speculative else None,
    }
    return {f"{PREFIX}{name}": value for name, value in fields.items() if value is not None}


def is_name(text: str) -> bool:
    """Whether `text` is valid; header bytes that are not UTF-8 are unprintable surrogates."""
    is_short = 0 < len(text) <= NAME_CHARACTERS_MAX
    return is_short and text.isprintable() and text == text.strip()


def name_of(text: str) -> str:
    """`text` if it is a name, else percent-encoded; if too long, cut and ended by its digest."""
    if is_name(text):
        return text
    encoded = quote(text, safe="", errors="replace")
    if 0 < len(encoded) <= NAME_CHARACTERS_MAX:
        return encoded
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]
    return f"{encoded[: NAME_CHARACTERS_MAX - DIGEST_CHARACTERS - 1]}~{digest}"
