"""Requests for answers, and what the engine sends for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from metropolis.torch_engine.cache_choice import Origin, ReuseOrder
from metropolis.torch_engine.sampling import Sampling
from metropolis.types import MetropolisError


class EngineError(MetropolisError):
    """A request that failed in the engine."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one answer."""

    model: str
    prompt: Sequence[int]
    """Token ids, at least one."""
    max_tokens: int | None = None
    """Maximum length of the answer; None: the engine's default, or less if that is too long."""
    sampling: Sampling = field(default_factory=Sampling)
    stops: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    """The JSON schema that the answer follows."""
    ignores_end: bool = False
    """Whether end tokens do not end the answer."""
    priority: int = 0
    """Smaller priorities run first; ties go by arrival."""
    reuse: ReuseOrder | None = None
    """The other model's cache to start from; None: the engine's plug-in chooses."""
    id: str | None = None
    """The id with which the client may abort the request."""


Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Output:
    """The next piece of an answer."""

    text: str
    tokens: int
    """Number of tokens of the answer so far."""
    origin: Origin
    finish: Finish | None = None


Receiver = Callable[[Output | MetropolisError], None]
"""Receives the outputs in order; an error or an output with `finish` is the last."""
