"""Choice of the next token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from metropolis.torch_engine.grammar import Matcher
from metropolis.types import MetropolisError

TEMPERATURE_MIN = 1e-5
"""Differences of logits over smaller ones are not finite."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of one answer are chosen."""

    temperature: float = 1.0
    """Below TEMPERATURE_MIN the most likely token is chosen."""
    top_p: float = 1.0
    """Choose only among the most likely tokens that together have this probability."""
    seed: int | None = None
    """The same seed, logits and settings give the same tokens; None: a random seed."""


@dataclass(slots=True)
class Sampler:
    """The state of one answer's choices."""

    sampling: Sampling
    matcher: Matcher | None = None
    """Restricts the answer to a schema; None: any answer."""
    _generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        if self.sampling.seed is not None:
            self._generator.manual_seed(self.sampling.seed)
        else:
            self._generator.seed()

    def choose(self, logits: Tensor) -> int:
        """The next token, from its logits (vocabulary) on the CPU.

        Raises MetropolisError if a logit is NaN.
        """
        if bool(logits.isnan().any()):
            raise MetropolisError("the model computed NaN as a logit")
        if self.matcher is not None:
            logits = logits.masked_fill(~self.matcher.allowed(len(logits)), float("-inf"))
        token = self._draw(logits)
        if self.matcher is not None:
            self.matcher.take(token)
        return token

    def is_complete(self) -> bool:
        """Whether nothing may follow; raises MetropolisError as `Matcher.is_complete`."""
        return self.matcher is not None and self.matcher.is_complete()

    def _draw(self, logits: Tensor) -> int:
        if self.sampling.temperature < TEMPERATURE_MIN:
            return int(logits.argmax())
        chances = torch.softmax((logits - logits.max()) / self.sampling.temperature, 0)
        if self.sampling.top_p < 1:
            ordered, tokens = chances.sort(descending=True, stable=True)
            # A token stays if those before it do not have the whole share yet; one always does.
            is_kept = ordered.cumsum(0) - ordered < self.sampling.top_p
            is_kept[0] = True
            chances = torch.zeros_like(chances).index_put((tokens[is_kept],), ordered[is_kept])
        return int(chances.multinomial(1, generator=self._generator))
