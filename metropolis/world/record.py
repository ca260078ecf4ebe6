"""The record of one step: the unit of history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metropolis.types import Step
from metropolis.world.entities import Entity, Event


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of all agents; its order does not depend on the order of execution."""

    step: Step
    actions: Mapping[str, Any]
    """Agent -> its action. One from a file or a store has the types of JSON: tuples are lists, and
    mappings are in the order of their keys."""
    writes: Mapping[str, Entity | None]
    """Entity -> its value after the step; None: removed. Ordered by name."""
    events: Sequence[Event]
    """Ordered by the agent that caused them, then by order of emission."""
