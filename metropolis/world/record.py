"""What happened in one step: the unit of history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metropolis.types import Step
from metropolis.world.entities import Entity, Event


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of all agents, in an order that does not depend on the order of execution."""

    step: Step
    actions: Mapping[str, Any]
    """Agent -> what it did."""
    writes: Mapping[str, Entity | None]
    """Entity -> what it is after the step; None: it is gone. By name."""
    events: Sequence[Event]
    """By the agent they come from, then in the order it emitted them."""
