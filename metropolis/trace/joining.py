"""Consecutive pieces of a trace as one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from metropolis.trace.schema import Calls, Int32, Trace


def joined(pieces: Sequence[Trace]) -> Trace:
    """The trace of all pieces, at least one, in their order; with the metadata of the first.

    Dependencies by value and what agents show are left out.
    """
    calls = [piece.calls for piece in pieces]
    steps_before = _sums([piece.steps for piece in pieces])
    calls_before = _sums([len(of) for of in calls])
    parents_before = _sums([len(of.parents) for of in calls])
    functions, function = _renumbered([(of.functions, of.function) for of in calls])
    models, model = _renumbered([(of.models, of.model) for of in calls])

    def column(name: str) -> Any:
        return np.concatenate([getattr(of, name) for of in calls])

    def texts(name: str) -> list[str | None] | None:
        columns = [getattr(of, name) for of in calls]
        if all(of is None for of in columns):
            return None
        return [*chain.from_iterable(columns)]

    offsets = [of.parent_offsets[:-1] + n for of, n in zip(calls, parents_before, strict=True)]
    return replace(
        pieces[0],
        positions=np.concatenate([piece.positions for piece in pieces]),
        calls=Calls(
            step=np.concatenate(
                [(of.step + n).astype(np.int32) for of, n in zip(calls, steps_before, strict=True)]
            ),
            agent=column("agent"),
            function=function,
            functions=functions,
            model=model,
            models=models,
            prompt_tokens=column("prompt_tokens"),
            output_tokens=column("output_tokens"),
            prefix_id=column("prefix_id"),
            prefix_tokens=column("prefix_tokens"),
            parent_offsets=np.concatenate([*offsets, [sum(len(of.parents) for of in calls)]]),
            parents=np.concatenate(
                [of.parents + n for of, n in zip(calls, calls_before, strict=True)]
            ),
            prompt=texts("prompt"),
            completion=texts("completion"),
        ),
        dependencies=None,
        shown=None,
    )


def _sums(counts: Sequence[int]) -> list[int]:
    """Before each piece, the sum of those before it."""
    return [0, *np.cumsum(counts).tolist()][: len(counts)]


def _renumbered(columns: Sequence[tuple[tuple[str, ...], Int32]]) -> tuple[tuple[str, ...], Int32]:
    """All names, sorted, and a column of indices into them."""
    names = sorted({name for own, _ in columns for name in own})
    number = {name: i for i, name in enumerate(names)}
    found = [np.array([number[name] for name in own], np.int32)[column] for own, column in columns]
    return tuple(names), np.concatenate(found)
