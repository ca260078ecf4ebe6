"""The timelines in a folder: of a run, or of each mode of a recorded replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metropolis.durable import reachable
from metropolis.export.perfetto import Lane
from metropolis.runtime.folder.view_file import read_view
from metropolis.runtime.replays.recorded_replay import INDEX, read_recorded_replay
from metropolis.timeline.columns import Timeline
from metropolis.timeline.reader import read_timeline
from metropolis.trace.parquet import IN_RUN, read_meta
from metropolis.types import MetropolisError


def lanes_of(folder: Path) -> list[Lane]:
    """The timelines in `folder`. Raises MetropolisError if it has none."""
    if not reachable(folder).is_dir():
        raise MetropolisError(
            f"{folder}: is not a folder; it should be the folder of a run, or one that "
            "`metropolis replay --record` wrote"
        )
    if not (folder / INDEX).exists():
        timeline = read_timeline(folder)
        return [_lane("", folder, timeline, read_view(folder, timeline.meta.run)[1].agents)]
    modes = read_recorded_replay(folder).lanes
    names = read_meta(folder / IN_RUN).agents
    return [
        _lane(mode if len(modes) > 1 else "", folder / mode, read_timeline(folder / mode), names)
        for mode in modes
    ]


def _lane(name: str, folder: Path, timeline: Timeline, agents: Sequence[str]) -> Lane:
    timeline.check_agents(len(agents), folder)
    return Lane(name, timeline.begun(), agents)
