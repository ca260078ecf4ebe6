"""`metropolis world`: check worlds, and import towns."""

from __future__ import annotations

from metropolis.cli import LazyGroup
from metropolis.cli.world_check import check_command

command = LazyGroup(
    "world",
    {"import-genagent": "metropolis.worlds.smallville.genagent"},
    "Check worlds, and import towns.",
)
command.add_command(check_command)
