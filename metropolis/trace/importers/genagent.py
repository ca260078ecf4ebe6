"""Stored runs of the Generative Agents project (Park et al. 2023).

Its server moves the agents at step N to the tiles in movement/N.json; the front end then shows
them and writes environment/N+1.json. So environment/N holds the positions at the beginning of step
N, as a trace does, and movement/N those at the beginning of step N + 1. `master_movement.json` is
movement/ in one file, without agents whose state did not change. movement/ also says what agents do
and say; at the beginning of step 0 that is unknown, and taken to be the same as at its end.
environment/0.json may place people who take no part in the simulation.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from metropolis.names import cut
from metropolis.trace.importers.files import read_json
from metropolis.trace.importers.genagent_times import times_of
from metropolis.trace.importers.recording import Recording
from metropolis.trace.shown import Lines, Shown
from metropolis.types import MetropolisError
from metropolis.world.appearance import Look

VELOCITY = 1.0
"""Tiles that an agent walks in a step."""
NO_BREAK = "\xa0"
"""Stands for the later spaces of a name in the runs that metropolis exports."""
_STEP = re.compile("[0-9]{1,9}")
_Tile = tuple[float, float]


class _State(NamedTuple):
    """An agent's tile, and what it shows; without a look that is unknown."""

    tile: _Tile
    look: Look | None = None
    lines: Lines = ()


_States = dict[str, _State]


def is_master(content: Any) -> bool:
    """Whether `content` is {step: {name: {movement: [x, y], ...}}}."""
    return (
        isinstance(content, dict)
        and any(_STEP.fullmatch(key) for key in content)
        and any(isinstance(moves, dict) for moves in content.values())
    )


def read_master(content: dict[str, Any], path: Path) -> Recording:
    """Read `master_movement.json`; an agent that is missing at a step has not moved.

    The positions at the beginning of step 0 are unknown: agents are assumed not to move in it.
    """
    moves_of: dict[int, Any] = {}
    for key, moves in content.items():
        if not _STEP.fullmatch(key):
            raise MetropolisError(f"{path}: {cut(key)} is not a step; it should be a whole number")
        if int(key) in moves_of:
            raise MetropolisError(f"{path}: step {int(key)} occurs twice; it should occur once")
        moves_of[int(key)] = moves
    where: _States = {}
    ends = []
    for step in _consecutive(moves_of, lambda step: f"{path}: step {step}"):
        moves = moves_of[step]
        if not isinstance(moves, dict):
            raise MetropolisError(
                f"{path}, step {step}: is {cut(moves)}; it should be an object of agents"
            )
        for name, entry in moves.items():
            if step and name not in where:
                raise MetropolisError(
                    f"{path}, step {step}: agent {cut(name)} is missing at step 0;"
                    " step 0 should hold every agent"
                )
            where[name] = _movement(name, entry, f"{path}, step {step}, agent {cut(name)}")
        ends.append(dict(where))
    return _recording(ends[:1] + ends[:-1], path.parent / "meta.json", path.parent)


def is_folder(path: Path) -> bool:
    """Whether `path` is a simulation's folder, or the movement/ or environment/ folder of one."""
    _, moves, stands = _steps_in(path)
    return bool(moves or stands)


def read_folder(path: Path) -> Recording:
    """Read a folder with environment/N.json, movement/N.json or both.

    environment/ is used if it has at least as many steps, and no gaps that movement/ does not have.
    Without its 0.json the positions at the beginning of step 0 are unknown: agents are assumed not
    to move in it.
    """
    root, moves, stands = _steps_in(path)
    meta = root / "reverie" / "meta.json"
    first, surplus = _first(moves, stands)
    reaches = bool(stands) and max(stands) >= max(moves, default=0)
    if reaches and (not moves or _is_whole(stands) or not _is_whole(moves)):
        states = [
            *_with_looks(_read_steps(root / "environment", stands, _environment, first), moves)
        ]
    else:
        ends = _read_steps(root / "movement", moves, _movements)
        begin = ends[0]
        if first:
            _same_agents(begin, first, stands[0])
            begin = {name: state._replace(tile=first[name].tile) for name, state in begin.items()}
        states = [begin, *ends[:-1]]
    return _recording(states, meta, root, moves, surplus)


def _first(moves: dict[int, Path], stands: dict[int, Path]) -> tuple[_States, tuple[str, ...]]:
    """The states of environment/0.json, and the agents there that the next file does not have."""
    if 0 not in stands:
        return {}, ()
    first = _read_step(stands[0], _environment)
    later = first
    if 0 in moves:
        later = _read_step(moves[0], _movements)
    elif 1 in stands:
        later = _read_step(stands[1], _environment)
    surplus = tuple(name for name in first if name not in later)
    return {name: first[name] for name in first if name in later}, surplus


def _with_looks(states: list[_States], moves: dict[int, Path]) -> Iterator[_States]:
    """`states` of environment/ with what the agents do and say by movement/, where that exists."""
    for step, state in enumerate(states):
        path = moves.get(max(0, step - 1))
        if path is None:
            yield state
            continue
        moved = _read_step(path, _movements)
        _same_agents(state, moved, path)
        yield {name: moved[name]._replace(tile=own.tile) for name, own in state.items()}


def _steps_in(path: Path) -> tuple[Path, dict[int, Path], dict[int, Path]]:
    """A simulation's folder and the step files in its movement/ and environment/.

    If `path` is one of the two, the other one is ignored.
    """
    alone = path.name if path.name in ("movement", "environment") and _numbered(path) else None
    root = path.parent if alone else path
    moves, stands = (
        _numbered(root / folder) if alone in (None, folder) else {}
        for folder in ("movement", "environment")
    )
    return root, moves, stands


def _numbered(folder: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    try:
        for file in sorted(folder.iterdir()):
            if file.suffix == ".json" and _STEP.fullmatch(file.stem):
                if other := files.get(int(file.stem)):
                    raise MetropolisError(
                        f"{file}: is the same step as {other.name}; each step should have one file"
                    )
                files[int(file.stem)] = file
        return files
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise MetropolisError(
            f"{folder}: cannot be read ({error.strerror}); it should be a readable folder"
        ) from None


def _is_whole(files: dict[int, Path]) -> bool:
    return len(files) == max(files) + 1


def _consecutive(steps: Iterable[int], name: Callable[[int], str]) -> range:
    found = set(steps)
    for step in range(len(found)):
        if step not in found:
            raise MetropolisError(
                f"{name(step)} is missing while there is one for step {max(found)};"
                " steps should follow one another from 0"
            )
    return range(len(found))


def _read_steps(
    folder: Path,
    files: dict[int, Path],
    parse: Callable[[Any, Path], _States],
    first: _States | None = None,
) -> list[_States]:
    """The states of all files, `first` in place of those of step 0."""
    tiles: list[_States] = []
    for step in _consecutive(files, lambda step: f"{folder / f'{step}.json'}"):
        tiles.append(first if first and not step else _read_step(files[step], parse))
        _same_agents(tiles[0], tiles[-1], files[step])
    return tiles


def _same_agents(first: _States, here: _States, path: Path) -> None:
    for name in sorted(first.keys() ^ here.keys()):
        given = "missing" if name in first else "new"
        raise MetropolisError(
            f"{path}: agent {cut(name)} is {given}; every step should hold the same agents"
        )


def _read_step(path: Path, parse: Callable[[Any, Path], _States]) -> _States:
    content = read_json(path)
    if not isinstance(content, dict):
        raise MetropolisError(f"{path}: is {type(content).__name__}; it should be a JSON object")
    return parse(content, path)


def _environment(content: Any, path: Path) -> _States:
    tiles = {}
    for name, entry in content.items():
        if not isinstance(entry, dict) or "x" not in entry or "y" not in entry:
            raise MetropolisError(
                f"{path}, agent {cut(name)}: x or y is missing; both should be there"
            )
        tiles[name] = _State(_tile([entry["x"], entry["y"]], f"{path}, agent {cut(name)}"))
    return tiles


def _movements(content: Any, path: Path) -> _States:
    # The project's key for the agents of a step.
    agents = content.get("persona")
    if not isinstance(agents, dict):
        raise MetropolisError(f"{path}: 'persona' should be an object with every agent's movement")
    return {
        name: _movement(name, entry, f"{path}, agent {cut(name)}") for name, entry in agents.items()
    }


def _movement(name: str, entry: Any, place: str) -> _State:
    if not isinstance(entry, dict) or "movement" not in entry:
        raise MetropolisError(f"{place}: movement is missing; it should be a tile [x, y]")
    tile = _tile(entry["movement"], place)
    if "description" not in entry:
        return _State(tile)
    texts = [entry["description"], entry.get("pronunciatio") or ""]
    for field, text in zip(("description", "pronunciatio"), texts, strict=True):
        if not isinstance(text, str):
            raise MetropolisError(f"{place}: {field} is {cut(text)}; it should be a text")
    label, at, address = _text(texts[0]).rpartition(" @ ")
    if not at:
        label, address = address, ""
    where = address.partition(":")[2] or address  # without the world, which no person's has
    look = Look(label, _text(texts[1]), where.replace(":", ": "))
    return _State(tile, look, _lines(name, entry.get("chat"), place))


def _lines(name: str, chat: Any, place: str) -> Lines:
    """The lines of a chat, a list of [speaker, text] or null; texts are lines of the agent."""
    lines = [chat] if chat and isinstance(chat, str) else chat or []
    if isinstance(lines, list):
        lines = [[name, line] if isinstance(line, str) else line for line in lines]
    if isinstance(lines, list) and all(
        isinstance(line, list) and [*map(type, line)] == [str, str] for line in lines
    ):
        return tuple((_name(_text(speaker)), _text(text)) for speaker, text in lines)
    raise MetropolisError(
        f"{place}: chat is {cut(chat)}; it should be null, or a list of [speaker, text]"
    )


def _text(text: str) -> str:
    """A text of the project's pages, which insert it as HTML; without halves of characters."""
    return html.unescape(text).encode("utf-8", "replace").decode()


def _name(name: str) -> str:
    return name.replace(NO_BREAK, " ")


def _tile(value: Any, place: str) -> _Tile:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(type(v) in (int, float) and abs(v) < 1e15 for v in value)
    ):
        return float(value[0]), float(value[1])
    raise MetropolisError(f"{place}: the position is {cut(value)}; it should be a tile [x, y]")


def _recording(
    states: list[_States],
    meta: Path,
    root: Path,
    moves: Mapping[int, Path] = MappingProxyType({}),
    surplus: tuple[str, ...] = (),
) -> Recording:
    agents = tuple(states[0])
    positions: npt.NDArray[np.float64] = np.array(
        [[of[name].tile for name in agents] for of in states], np.float64
    ).reshape(len(states), len(agents), 2)
    start, step_s = times_of(moves, meta, len(states))
    name = root.resolve().name
    return Recording(
        agents=tuple(_name(name) for name in agents),
        positions=positions,
        name=name,
        source=f"Generative Agents run {name}",
        radius=_radius(root),
        velocity=VELOCITY,
        movement_metric="manhattan",
        start=start,
        step_s=step_s,
        shown=tuple(_changes(states)) or None,
        surplus=tuple(map(_name, surplus)),
    )


def _radius(root: Path) -> float | None:
    """The largest `vision_r` of the people; None: no readable `scratch.json` has one."""
    radii: list[float] = []
    for path in sorted(root.glob("personas/*/bootstrap_memory/scratch.json")):
        with suppress(MetropolisError, KeyError, TypeError, OverflowError):
            radius = read_json(path)["vision_r"]
            radii += [float(radius)] if type(radius) in (int, float) else []
    return max(radii, default=None)


def _changes(states: list[_States]) -> Iterator[Shown]:
    """Yield what each agent shows, at each step at which that changes."""
    before: dict[str, tuple[Look, Lines]] = {}
    for step, of in enumerate(states):
        for agent, (name, state) in enumerate(of.items()):
            if state.look is not None and before.get(name) != (state.look, state.lines):
                before[name] = state.look, state.lines
                yield Shown(step, agent, state.look, state.lines)
