"""Empirical distributions of output lengths (SamuLLM §2: eCDFs), by model and function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from metropolis.llm.journal import read_journal
from metropolis.names import did_you_mean
from metropolis.plan.application import TOKENS_MAX
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LengthDistribution:
    """Observed output lengths in tokens, sorted."""

    observed: Counts

    @classmethod
    def of(cls, lengths: npt.ArrayLike) -> LengthDistribution:
        """The distribution of the given lengths.

        Raises MetropolisError if there is none, or one that is not in [1, TOKENS_MAX].
        """
        values = np.sort(lengths)
        if (
            not len(values)
            or values.dtype.kind not in "iu"
            or not 1 <= values[0] <= values[-1] <= TOKENS_MAX
        ):
            raise MetropolisError(
                f"output lengths must be whole numbers of tokens in [1, {TOKENS_MAX}]"
            )
        return cls(values.astype(np.int64))

    def draw(self, random: np.random.Generator, count: int) -> Counts:
        """`count` lengths, drawn independently."""
        return random.choice(self.observed, count)

    @property
    def mean(self) -> float:
        """Mean in tokens."""
        return float(self.observed.mean())


Lengths: TypeAlias = Mapping[str, LengthDistribution]
"""Name -> distribution; a name is a model, MODEL:FUNCTION, or any that nodes refer to."""


def lengths_for(lengths: Lengths, name: str, where: str) -> LengthDistribution:
    """The distribution of that name; raises MetropolisError if there is none."""
    if name in lengths:
        return lengths[name]
    known = ", ".join(sorted(lengths)) or "none"
    raise MetropolisError(
        f"{where}: there is no distribution of output lengths {name!r}"
        f"{did_you_mean(name, lengths)}; there are {known}"
    )


def lengths_of_trace(trace: Trace) -> dict[str, LengthDistribution]:
    """The distributions of a trace's calls: by MODEL, MODEL:FUNCTION and :FUNCTION."""
    calls, found = trace.calls, defaultdict[str, list[int]](list)
    for model, function, tokens in zip(
        calls.model.tolist(), calls.function.tolist(), calls.output_tokens.tolist(), strict=True
    ):
        for name in _names(calls.models[model], calls.functions[function]):
            found[name].append(tokens)
    return {name: LengthDistribution.of(each) for name, each in found.items()}


def lengths_of_journal(path: Path) -> dict[str, LengthDistribution]:
    """The distributions of the answers in a run's journal, by :FUNCTION."""
    found = defaultdict[str, list[int]](list)
    for key, completion in read_journal(path):
        # An engine decodes at least the token that ends an empty answer.
        found[f":{key.function}"].append(max(1, completion.output_tokens))
    return {name: LengthDistribution.of(each) for name, each in found.items()}


def read_lengths(path: Path) -> dict[str, LengthDistribution]:
    """The distributions of a JSON file: `{"NAME": [tokens, …], …}`."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, list[int]])
    except OSError as error:
        raise MetropolisError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MetropolisError(
            f'{path}: {error}; write {{"NAME": [output tokens, …], …}}'
        ) from error
    try:
        return {name: LengthDistribution.of(each) for name, each in content.items()}
    except MetropolisError as error:
        raise MetropolisError(f"{path}: {error}") from error


def _names(model: str, function: str) -> tuple[str, ...]:
    names = (f":{function}",)
    return (model, f"{model}:{function}", *names) if model else names
