"""`metropolis plan`: which models run when, and on how many GPUs."""

from __future__ import annotations

from metropolis.cli import LazyGroup

command = LazyGroup(
    "plan",
    {part: f"metropolis.cli.plan.{part}" for part in ("society",)},
    "Plan which models run when, and on how many GPUs.",
)
