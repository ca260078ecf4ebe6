"""Answers that must match a JSON schema, by llguidance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metropolis.names import first_line
from metropolis.types import MetropolisError


class Grammars:
    """Matchers over the tokens of one tokenizer; `end_token` is the one that ends an answer."""

    def __init__(self, tokenizer: Any, end_token: int | None) -> None:
        self._tokenizer, self._end_token = tokenizer, end_token
        self._prepared: Any = None
        """llguidance's tokenizer, created on first use: that takes a second."""

    def matcher(self, schema: Mapping[str, Any]) -> Matcher:
        """A matcher of `schema` without white space. Raises MetropolisError if there is none."""
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise MetropolisError(
                "answers in JSON need llguidance: pip install 'metropolis[torch]'"
            ) from None
        try:
            if self._prepared is None:
                self._prepared = from_tokenizer(self._tokenizer, eos_token=self._end_token)
            grammar = LLMatcher.grammar_from_json_schema(
                dict(schema), defaults={"whitespace_flexible": False}
            )
        except ValueError as error:
            raise MetropolisError(f"answers in JSON: {first_line(error)}") from None
        matcher = LLMatcher(self._prepared, grammar, log_level=0)
        matcher.compute_bitmask()  # some faults show only now
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0]
            raise MetropolisError(f"the JSON schema cannot be followed: {reason}")
        return Matcher(matcher)


class Matcher:
    """Tells which tokens may come next in an answer that follows a schema."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, vocabulary: int) -> Tensor:
        """Which of the tokens below `vocabulary` may be next."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(vocabulary, dtype=bool)
        known = np.unpackbits(mask, bitorder="little")[:vocabulary]
        allowed[: len(known)] = known
        return torch.from_numpy(allowed)

    def take(self, token: int) -> None:
        """`token` was chosen."""
        self._matcher.consume_token(token)

    def is_complete(self) -> bool:
        """Whether nothing may follow; raises MetropolisError if that leaves the JSON incomplete."""
        if not self._matcher.is_stopped():
            return False
        if not self._matcher.is_accepting():
            raise MetropolisError("no token of the model continues the JSON that was asked for")
        return True
