"""Topological order of the calls of a trace."""

from __future__ import annotations

import numpy as np

from metropolis.trace.schema import Calls, Int64


def parents_first(calls: Calls) -> Int64:
    """The calls ordered by step, each after its parents.

    Calls in a cycle, and calls that wait for them, are left out.
    """
    n = len(calls)
    counts = np.diff(calls.parent_offsets)
    child = np.repeat(np.arange(n), counts)
    if (calls.parents < child).all():
        return np.arange(n)
    by_parent = np.argsort(calls.parents, kind="stable")
    children = child[by_parent]
    first = np.searchsorted(calls.parents[by_parent], np.arange(n + 1))
    open_parents = counts.copy()
    waves = []
    ready = np.flatnonzero(open_parents == 0)
    while len(ready):
        waves.append(ready)
        freed = children[ranges(first[ready], first[ready + 1] - first[ready])]
        np.subtract.at(open_parents, freed, 1)
        freed = np.unique(freed)
        ready = freed[open_parents[freed] == 0]
    order = np.concatenate([np.zeros(0, np.int64), *waves])
    return order[np.argsort(calls.step[order], kind="stable")].astype(np.int64)


def ranges(starts: Int64, counts: Int64) -> Int64:
    """The concatenation of the ranges [starts[i], starts[i] + counts[i])."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
