"""Runs as simulations of the Generative Agents project (Park et al. 2023), for its viewer.

The folder holds what both pages of the viewer read (`translator/views.py` of the project):

demo      master_movement.json: what changed in each step, with a key for every step from 0; and
          meta.json
replay    movement/N.json: what everybody shows after step N; environment/0.json: where they start;
          and personas/, whose folders name the agents
state     personas/NAME/bootstrap_memory/: what the agent does and remembers at the end

Both count steps from midnight. A run that starts later follows steps in which nobody moves.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from metropolis.durable import reported
from metropolis.export.frames import Frame, Frames, dialogue_of, frames_of, initial_frames
from metropolis.export.genagent_memory import write_json, write_memory
from metropolis.export.genagent_schedule import schedules_of
from metropolis.names import cut, is_folder_name
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.view_file import read_view
from metropolis.trace.importers.genagent import NO_BREAK
from metropolis.trace.importers.genagent_times import CLOCK, DATE
from metropolis.trace.shown import Lines
from metropolis.types import MetropolisError, Step
from metropolis.world.appearance import details_of, number_of, value_at

MAZE = "the_ville"
"""The only map that the viewer has."""
DAY_S = 24 * 3600
NAME_BYTES_MAX = 255
_NAME = re.compile(r"[A-Za-z0-9_-]+")
"""A name that the addresses of the server can contain."""


def _check_names(folder: Path, names: Sequence[str]) -> None:
    """Raise MetropolisError unless each of `names` can be that of its own folder."""
    for name in names:
        if not is_folder_name(name) or len(_name(name).encode()) > NAME_BYTES_MAX:
            raise MetropolisError(
                f"{folder}: the agent {cut(name)} cannot be exported: the viewer of Generative "
                "Agents needs a folder of its name"
            )


@dataclass(frozen=True)
class Written:
    """An exported simulation."""

    agents: int
    first_step: int
    """The simulation's step that is the run's step 0."""
    steps: int
    """Number of the simulation's steps."""


class GenAgentExport:
    """The run in `folder`, to be written once. Raises MetropolisError if it has no grid map."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._directory = folder, RunDirectory(folder)
        self._directory.read()
        self._view, self._meta = read_view(folder, self._directory.run)
        if self._meta.map is None:
            raise MetropolisError(
                f"{folder}: is a run without a grid map; the viewer of Generative Agents shows "
                "agents on tiles"
            )
        _check_names(folder, self._meta.agents)
        self._steps = self._directory.recorded_steps
        self._midnight = datetime.combine(self._meta.start.date(), datetime.min.time())
        before_s = (self._meta.start - self._midnight).total_seconds()
        self._first = round(before_s / self._meta.step_s)
        self.steps = self._first + self._steps

    def write(self, out: Path, advance: Callable[[int], object] = lambda _: None) -> Written:
        """Write the folder `out`, which should not exist; `advance` is called for every step."""
        if out.exists() or out.is_symlink():
            raise MetropolisError(f"{out} exists; name a folder that does not exist")
        if not _NAME.fullmatch(out.name):
            raise MetropolisError(
                f"{out}: the name {out.name!r} cannot be part of the server's addresses; it should "
                "consist of letters, digits, _ and -"
            )
        with reported(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as private:
                partial = Path(private) / out.name
                for part in ("movement", "environment", "reverie", "personas"):
                    (partial / part).mkdir(parents=True)
                self._write(partial, advance)
                partial.rename(out)
        return Written(len(self._meta.agents), self._first, self.steps)

    def _write(self, root: Path, advance: Callable[[int], object]) -> None:
        frames = beginning = initial_frames(self._view, self._meta.agents)
        write_json(root / "environment" / "0.json", _environment(beginning))
        shown: dict[str, Any] = {}
        since: dict[str, Step] = dict.fromkeys(frames, 0)
        chats: defaultdict[str, dict[Step, Lines]] = defaultdict(dict)
        with (root / "master_movement.json").open("w", encoding="utf-8") as master:
            for step, (after, events) in enumerate(self._all_frames(beginning)):
                since |= {name: step for name, of in after.items() if of.look != frames[name].look}
                frames = after
                for event in events:
                    names, lines = dialogue_of(self._view.appearance, event)
                    for name in names:
                        chats[name][event.step] = lines
                moves = {_name(name): self._movement(frame) for name, frame in frames.items()}
                now = {"curr_time": self._time(step).strftime(CLOCK)}
                write_json(root / "movement" / f"{step}.json", {"persona": moves, "meta": now})
                changed = {name: move for name, move in moves.items() if shown.get(name) != move}
                _write_key(master, step, changed)
                shown = moves
                advance(1)
            master.write("\n}\n" if self.steps else "{}\n")
        meta = self._meta_json()
        write_json(root / "meta.json", meta)
        write_json(root / "reverie" / "meta.json", meta)
        checkpoint = self._directory.checkpoints.newest(self._steps)
        for name, frame in frames.items():
            mind = None if checkpoint is None else checkpoint.agents.get(name)
            scratch = self._scratch(name, frame, since[name], mind)
            folder = root / "personas" / _name(name)
            write_memory(folder, self._view, self._meta, scratch, mind, chats[name])

    def _all_frames(self, frames: Frames) -> Iterator[tuple[Frames, Any]]:
        for _ in range(self._first):
            yield frames, ()
        for after, record in frames_of(self._directory, self._view.appearance, frames):
            yield after, record.events

    def _movement(self, frame: Frame) -> dict[str, Any]:
        look = frame.look
        return {
            "movement": [int(frame.position[0]), int(frame.position[1])],
            "pronunciatio": look.emoji,
            "description": html.escape(
                f"{look.label.replace('@', 'at')} @ {self._address(look.place)}", quote=False
            ),
            "chat": [[_name(who), html.escape(text, quote=False)] for who, text in frame.lines]
            or None,
        }

    def _address(self, place: str) -> str:
        """`place` is "sector: arena: object", or a part of it."""
        assert self._meta.map is not None
        return ":".join([self._meta.map.name, *filter(None, place.split(": "))])

    def _time(self, step: Step) -> datetime:
        """When the simulation's step begins."""
        return self._midnight + timedelta(seconds=step * self._meta.step_s)

    def _meta_json(self) -> dict[str, Any]:
        step_s = self._meta.step_s
        return {
            "fork_sim_code": self._folder.resolve().name,
            "start_date": self._midnight.strftime(DATE),
            "curr_time": self._time(self.steps).strftime(CLOCK),
            "sec_per_step": int(step_s) if step_s.is_integer() else step_s,
            "maze_name": MAZE,
            "persona_names": [_name(name) for name in self._meta.agents],
            "step": self.steps,
            "metropolis_first_step": self._first,
        }

    def _scratch(self, name: str, frame: Frame, since: Step, mind: Any) -> dict[str, Any]:
        """The content of `scratch.json`; the activity has begun in the step `since`."""
        first, *others = name.split(" ")
        appearance = self._view.appearance
        ends_s = (number_of(value_at(mind, path)) for path in appearance.until_s)
        began_s = since * self._meta.step_s
        until_s = next((end_s for end_s in ends_s if end_s is not None), began_s)
        here = [int(frame.position[0]), int(frame.position[1])]
        goal, partner = value_at(mind, appearance.goal), value_at(mind, appearance.partner)
        scratch = {
            "name": _name(name),
            "first_name": first,
            "last_name": " ".join(others),
            "vision_r": self._meta.perception_radius,
            "curr_time": self._time(self.steps).strftime(CLOCK),
            "curr_tile": here,
            "planned_path": [] if goal in (None, here) else [goal],
            "chatting_with": _name(partner) if isinstance(partner, str) else None,
            "act_address": self._address(frame.look.place),
            "act_description": frame.look.label,
            "act_pronunciatio": frame.look.emoji,
            "act_start_time": self._time(since).strftime(CLOCK),
            "act_duration": max(0, round((until_s - began_s) / 60)),
            **details_of(appearance, mind),
        }
        for field, paths in appearance.addresses.items():
            parts = [value_at(mind, path) for path in paths]
            if all(isinstance(part, str) for part in parts):
                scratch[field] = self._address(": ".join(parts))
        if appearance.schedule is not None:
            now_s = self.steps * self._meta.step_s
            scratch |= schedules_of(appearance.schedule, mind, now_s // DAY_S * DAY_S)
        return scratch


def _name(name: str) -> str:
    """A name with at most one space: the page `demo` does not find names with two."""
    first, _, others = name.partition(" ")
    return f"{first} {others.replace(' ', NO_BREAK)}" if others else first


def _environment(frames: Mapping[str, Frame]) -> dict[str, Any]:
    return {
        _name(name): {"maze": MAZE, "x": int(frame.position[0]), "y": int(frame.position[1])}
        for name, frame in frames.items()
    }


def _write_key(file: TextIO, step: Step, value: Any) -> None:
    file.write(f'{"," if step else "{"}\n"{step}": {json.dumps(value)}')
