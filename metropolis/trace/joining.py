"""Consecutive pieces of a trace as one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from metropolis.trace.schema import Calls, Int32, Trace


def joined(pieces: Sequence[Trace]) -> Trace:
    """The trace of all pieces, at least one, in their order; with the metadata of the first.

    Dependencies by value and what agents show are left out.
    """
    calls = [piece.calls for piece in pieces]
    step_sums = accumulate((piece.steps for piece in pieces), initial=0)
    call_sums = accumulate(map(len, calls), initial=0)
    *parents_before, parents = accumulate((len(of.parents) for of in calls), initial=0)
    functions, function = _renumbered([(of.functions, of.function) for of in calls])
    models, model = _renumbered([(of.models, of.model) for of in calls])

    def column(name: str) -> Any:
        return np.concatenate([getattr(of, name) for of in calls])

    def texts(name: str) -> list[str | None] | None:
        columns = [getattr(of, name) for of in calls]
        if all(column is None for column in columns):
            return None
        of_calls = zip(columns, calls, strict=True)  # a piece without texts has no column of texts
        return [text for column, of in of_calls for text in column or [None] * len(of)]

    offsets = [of.parent_offsets[:-1] + n for of, n in zip(calls, parents_before, strict=True)]
    return replace(
        pieces[0],
        positions=np.concatenate([piece.positions for piece in pieces]),
        calls=Calls(
            step=np.concatenate(
                [(of.step + n).astype(np.int32) for of, n in zip(calls, step_sums, strict=False)]
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
            parent_offsets=np.concatenate([*offsets, [parents]]),
            parents=np.concatenate(
                [of.parents + n for of, n in zip(calls, call_sums, strict=False)]
            ),
            prompt=texts("prompt"),
            completion=texts("completion"),
        ),
        dependencies=None,
        shown=None,
    )


def _renumbered(columns: Sequence[tuple[tuple[str, ...], Int32]]) -> tuple[tuple[str, ...], Int32]:
    """All names, sorted, and a column of indices into them."""
    names = sorted({name for own, _ in columns for name in own})
    number = {name: i for i, name in enumerate(names)}
    found = [np.array([number[name] for name in own], np.int32)[column] for own, column in columns]
    return tuple(names), np.concatenate(found)
