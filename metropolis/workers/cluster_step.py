"""One step of a cluster while a worker runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
from msgspec.structs import replace

from metropolis._core import is_immutable
from metropolis.llm.agent import LLM
from metropolis.llm.call_log import CallLog, CallRecord
from metropolis.names import cut
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.types import AgentId, Dispatch, MetropolisError, Step
from metropolis.workers.invocations import cancelled_from_within
from metropolis.world.base import UNDECIDED, Agent
from metropolis.world.entities import Entity, Event
from metropolis.world.state import State
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reads


@dataclass(slots=True)
class ClusterStep:
    """The step of one cluster."""

    step: Step
    members: Mapping[str, Agent]
    observed: dict[str, Reads] = field(default_factory=dict)
    """Agent -> what its observation was made of."""
    actions: dict[str, Any] = field(default_factory=dict)
    undecided: dict[str, Any] = field(default_factory=dict)
    """Agent -> its observation, of those whose `proceed` has to decide."""
    cluster: Transaction | None = None
    """What the world makes of the actions, once all have decided."""
    resolving: Awaitable[None] | None = None
    """The rest of `World.resolve`, if it is async."""
    log: CallLog | None = None
    """The calls; None: no member needs a model."""
    llms: dict[str, LLM] = field(default_factory=dict)

    @property
    def is_resolved(self) -> bool:
        """Whether the step is complete."""
        return self.cluster is not None and self.resolving is None


LatestExecutions = dict[str, Execution]
"""Agent -> its last execution. The next one shares its data as far as they are equal: executions
wait in memory for the floor, and those of a sleeping agent differ only by their steps."""


@dataclass(slots=True)
class ClusterSteps:
    """The steps of the clusters into which a dispatch falls."""

    dispatch: Dispatch
    attempt: int
    state: State
    parts: list[ClusterStep]
    latest: LatestExecutions

    @property
    def is_resolved(self) -> bool:
        """Whether all steps are complete."""
        return all(part.is_resolved for part in self.parts)

    def close(self) -> None:
        """Close coroutines that have not begun and will not: Python would warn of them."""
        for part in self.parts:
            resolving = part.resolving
            if isinstance(resolving, Coroutine) and getcoroutinestate(resolving) == CORO_CREATED:
                resolving.close()

    def execution(self) -> Execution:
        """What is to be committed; all steps are complete. Ends their clusters."""
        writes: dict[str, Entity | None] = {}
        actions: dict[str, Any] = {}
        calls: dict[AgentId, list[CallRecord]] = {}
        observed: dict[str, Reads] = {}
        resolved: dict[str, Reads] = {}
        events: list[Event] = []
        effects = []
        for part in self.parts:
            cluster = part.cluster
            assert cluster is not None
            if part.log is not None:
                calls |= part.log.calls
            for member in cluster:
                name = member.name
                reads = part.observed[name], member.reads
                before = self.latest.get(name)
                if before:
                    known = before.observed[name], before.resolved[name]
                    if reads == known:
                        reads = known
                observed[name], resolved[name] = reads
            writes |= cluster.writes
            events += cluster.events
            for name, action in part.actions.items():
                actions[name] = None if action is None else copied(action)
            effects.append(ClusterEffects.of(cluster))
            cluster.end()
            for llm in part.llms.values():
                llm.end()
            part.cluster = None  # breaks a reference cycle: the cluster refers to `part`
        execution = Execution(
            self.dispatch.step,
            self.dispatch.agents,
            actions,
            writes,
            events,
            calls,
            observed=observed,
            resolved=resolved,
            attempt=self.attempt,
            clusters=effects,
        )
        before = self.latest.get(next(iter(observed)))
        if before and repeats(execution, before):
            execution = replace(before, step=execution.step, attempt=execution.attempt)
        self.latest |= dict.fromkeys(observed, execution)
        return execution


def repeats(execution: Execution, before: Execution) -> bool:
    """Whether only step and attempt differ, and neither has an effect."""
    for each in (execution, before):
        if each.writes or each.events or each.calls:
            return False
    return (
        execution.agents == before.agents
        and execution.clusters == before.clusters
        and all(action is before.actions[name] for name, action in execution.actions.items())
        and all(reads is before.observed[name] for name, reads in execution.observed.items())
        and all(reads is before.resolved[name] for name, reads in execution.resolved.items())
    )


async def gather(
    step: Step, of: Mapping[str, Coroutine[Any, Any, Any]], *, one_by_one: bool
) -> dict[str, Any]:
    """Return the results of coroutines by agent; if one fails, cancel the others."""
    if one_by_one or len(of) == 1:
        try:
            return {name: await one for name, one in of.items()}
        finally:
            for one in of.values():
                one.close()
    tasks = {name: asyncio.ensure_future(one) for name, one in of.items()}
    try:
        return dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
    except asyncio.CancelledError:
        gathering = asyncio.current_task()
        if gathering is not None and not gathering.cancelling():
            name = next(name for name, task in tasks.items() if task.cancelled())
            raise cancelled_from_within(step, name) from None
        raise
    finally:
        for task in tasks.values():
            task.cancel()


@cache
def has_routine(kind: type[Agent]) -> bool:
    """Whether `kind.routine` knows what `kind.proceed` does: a subclass may redefine only that."""
    owners = [
        next(of for of in kind.__mro__ if name in vars(of)) for name in ("routine", "proceed")
    ]
    return owners[0] is not Agent and issubclass(owners[0], owners[1])


def decided(action: Any, step: Step, name: str) -> Any:
    """A snapshot of the action that the agent `name` has decided on: it may change its own later.

    Raises MetropolisError if the action cannot be copied, or contains NaN or infinity.
    """
    if action is None or action is UNDECIDED:
        return action
    try:
        return copied(action)
    except _NotFiniteError as error:
        raise MetropolisError(
            f"step {step}, agent {name!r}: its action is {cut(action)}; JSON does not support "
            f"{error}; use None or a finite number"
        ) from None
    except Exception as error:
        calls = [*_coroutines(action)]
        for call in calls:
            call.close()  # Python would warn of it as well
        advice = "write await before the call" if calls else "it should be plain data"
        raise MetropolisError(
            f"step {step}, agent {name!r}: its action {cut(action)} cannot be copied ({error}); "
            f"{advice}"
        ) from error


def _coroutines(value: Any) -> Iterator[Coroutine[Any, Any, Any]]:
    if iscoroutine(value):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_coroutines, value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_coroutines, value))


class _NotFiniteError(Exception):
    """An action contains this number, which would become null in JSON."""


def copied(action: Any) -> Any:
    """A snapshot of `action`: agents may change returned lists and mappings later."""
    kind = type(action)
    if kind is list or kind is tuple:
        copies = [copied(value) for value in action]
        if kind is list:
            return copies
        return action if is_immutable(action) else tuple(copies)
    if isinstance(action, float | np.floating):
        if not isfinite(action):
            raise _NotFiniteError(action)
        return action
    if is_immutable(action):
        return action  # the action may be compared by identity
    if isinstance(action, Mapping):
        return {key: copied(value) for key, value in action.items()}
    is_real = isinstance(action, np.ndarray) and action.dtype.kind == "f"
    if is_real and (odd := action[~np.isfinite(action)]).size:
        raise _NotFiniteError(odd[0])
    return deepcopy(action)
