"""view.json: what the viewer must know of a run beside its records.

It is written when a run starts or is resumed, so that the viewer executes no code of a world.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from metropolis.durable import check_format, read_object, write_object
from metropolis.rules.metrics import COORDINATE_MAX
from metropolis.runtime.folder.run_trace import trace_meta
from metropolis.trace.metadata import meta_from_json, meta_to_json
from metropolis.trace.schema import TraceMeta
from metropolis.trace.validate import validate_meta
from metropolis.types import MetropolisError, Position, Step
from metropolis.world.appearance import Appearance, Look, check_appearance, look_of
from metropolis.world.base import World
from metropolis.world.entities import Entity

VIEW = "view.json"
FORMAT, VERSION = "metropolis-view", 1
REPAIR = "`metropolis resume` writes it again"


class ViewFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of view.json, without its trace metadata."""

    run: str
    """The id in run.json."""
    mode: str
    simulated: bool
    """Whether times are virtual."""
    target: Step
    """The number of steps after which the run ends."""
    appearance: Appearance
    beginning: tuple[Position, ...]
    """The agents' positions at step 0."""
    looks: tuple[Look, ...]
    """The agents' looks at step 0."""


def write_view(
    folder: Path,
    world: World,
    names: Sequence[str],
    initial: Sequence[Entity],
    *,
    run: str,
    mode: str,
    simulated: bool,
    target: Step,
) -> None:
    """Write the file of a run that begins with the entities `initial`. Raises UnwritableError."""
    by_name = {entity.name: entity for entity in initial}
    bodies = [by_name[name] for name in names]
    content = ViewFile(
        run=run,
        mode=mode,
        simulated=simulated,
        target=target,
        appearance=world.appearance,
        beginning=tuple(body.position for body in bodies),
        looks=tuple(look_of(world.appearance, body.state) for body in bodies),
    )
    whole: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    whole |= msgspec.to_builtins(content)
    whole["trace"] = json.loads(meta_to_json(trace_meta(world, names)))
    write_object(folder / VIEW, whole)


def read_view(folder: Path, run: str | None) -> tuple[ViewFile, TraceMeta]:
    """Read the file of `run`.

    Raises MetropolisError if it is missing, damaged, of another format or of another run.
    """
    path = folder / VIEW
    if not path.exists():
        raise MetropolisError(
            f"{folder}: has no {VIEW}, which a run writes when it starts; {REPAIR}"
        )
    found = read_object(path, REPAIR)
    check_format(path, found, FORMAT, VERSION, REPAIR)
    try:
        content = msgspec.convert(found, ViewFile)
    except ValueError as error:
        raise MetropolisError(f"{path}: {error}; {REPAIR}") from None
    if content.run != run:
        raise MetropolisError(f"{path}: is of another run than the other files; {REPAIR}")
    check_appearance(content.appearance, f"{path}")
    meta = meta_from_json(json.dumps(found.get("trace")), path)
    validate_meta(meta, f"{path}")
    if not len(content.beginning) == len(content.looks) == len(meta.agents):
        raise MetropolisError(
            f"{path}: has {len(content.beginning)} positions and {len(content.looks)} looks for "
            f"{len(meta.agents)} agents; {REPAIR}"
        )
    if not (np.abs(content.beginning) <= COORDINATE_MAX).all():
        raise MetropolisError(
            f"{path}: has positions beyond {COORDINATE_MAX:g}, which no metric accepts; {REPAIR}"
        )
    return content, meta
