"""`metropolis plan`: schedules of applications, runs by them, and fleets for societies."""

from __future__ import annotations

from metropolis.cli import LazyGroup

command = LazyGroup(
    "plan",
    {part: f"metropolis.cli.plan.{part}" for part in ("run", "show", "society")},
    "Plan which models run when, and on how many GPUs; run applications by the plan.",
)
