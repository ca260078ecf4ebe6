"""Checks of a trace before its replay in a setting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import metropolis._core as _core
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.schema import Trace
from metropolis.trace.validate import place_in, validate_moves
from metropolis.types import MetropolisError


def check_moves(trace: Trace, metric: str, max_velocity: float, owner: object) -> None:
    """Raise MetropolisError if a move is too long for a metric or velocity beside the trace's.

    `owner`, such as the trace's file, begins the error.
    """
    meta = trace.meta
    if metric != meta.metric or max_velocity < meta.max_velocity:
        replayed = replace(meta, metric=metric, max_velocity=max_velocity)
        validate_moves(trace.positions, replayed, place_in(owner, meta.agents))


def check_models(trace: Trace, fleet: SimulatedFleet) -> None:
    """Raise MetropolisError if a call's model is hosted by no instance of `fleet`."""
    fleet.check_hosts(trace.calls.models[index] for index in np.unique(trace.calls.model).tolist())


def check_calls_fit(trace: Trace, fleet: SimulatedFleet) -> None:
    """Raise MetropolisError if a call does not fit into one of the instances, when empty."""
    calls = trace.calls
    if not len(calls):
        return
    largest = int(np.argmax(calls.prompt_tokens.astype(np.int64) + calls.output_tokens))
    prompt, output = int(calls.prompt_tokens[largest]), int(calls.output_tokens[largest])
    for kind in fleet.kinds:
        try:
            _core.InstancePool.check_fits(kind.profile, _core.Request(prompt, output))
        except ValueError as error:
            raise MetropolisError(
                f"step {calls.step[largest]}, agent {trace.meta.agents[calls.agent[largest]]!r}: "
                f"a call of {prompt} prompt and {output} output tokens does not fit an instance of "
                f"{kind.name}, which holds {kind.profile.kv_capacity_tokens} KV tokens"
            ) from error
