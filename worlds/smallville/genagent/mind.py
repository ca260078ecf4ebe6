"""An imported person's memories, plans and activity (`scratch.json`, `nodes.json`).

`nodes.json` has the newest node first. Its `filling` is, of a thought, the list of nodes that it is
based on, one such name as a text, or null; of a chat, the lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

from metropolis.maps.map import GridMap
from metropolis.names import cut
from metropolis.trace.importers.genagent_times import CLOCK
from metropolis.types import MetropolisError
from metropolis.worlds.smallville.genagent.files import Fields, number_of, read_object
from metropolis.worlds.smallville.genagent.workplaces import EAST_ASIAN
from metropolis.worlds.smallville.geography import Tile
from metropolis.worlds.smallville.memory import IDLE, Node, created
from metropolis.worlds.smallville.past import Past
from metropolis.worlds.smallville.planning import TO_BED, is_sleep
from metropolis.worlds.smallville.state import DAY_S, MINUTE_S, Activity, Day, Task
from metropolis.worlds.smallville.world import SLEEPING, Doing

KINDS = ("event", "thought", "chat")
_CREATED = "%Y-%m-%d %H:%M:%S"
_NODE = re.compile(r"node_(\d{1,18})", re.ASCII)
_LETTER = rf"[^\W{EAST_ASIAN}]"
"""A letter of a script with spaces between words, so not Chinese, Japanese and Korean."""
_DETAILED = re.compile(r"(.+?) \((.+)\)", re.DOTALL)
"""An entry of a schedule and the task in it."""


def read_memories(path: Path, now: datetime) -> tuple[Node, ...]:
    """The nodes of `nodes.json` in order of creation; none without the file.

    `now` is the time of step 0. Raises MetropolisError naming file, node and field.
    """
    if not path.exists():
        return ()
    found = read_object(path)
    numbered: dict[int, dict[str, Any]] = {}
    for name, content in found.items():
        number = _NODE.fullmatch(name)
        if number is None or not isinstance(content, dict):
            raise MetropolisError(
                f"{path}: {cut(name)} should be a node, named node_1, node_2 and so on"
            )
        numbered[int(number[1])] = content
    index = {number: at for at, number in enumerate(sorted(numbered))}
    return tuple(
        _node(Fields(numbered[number], f"{path}: node_{number}"), now, index, at)
        for number, at in index.items()
    )


def _node(fields: Fields, now: datetime, index: dict[int, int], at: int) -> Node:
    kind, text = fields.text("type"), fields.text("description")
    if kind not in KINDS:
        raise fields.wrong("type", " or ".join(KINDS))
    subject, predicate, what = (fields.text(of) for of in ("subject", "predicate", "object"))
    moment = _past_moment(fields, "created", _CREATED, now)
    if kind == "chat":
        pair = f"{subject} and {what} are"
        about = text.removeprefix(f"{pair} ").removeprefix("conversing about ")
        text = f"{pair} conversing about {about}"
    evidence = _evidence(fields.content.get("filling"), index, at) if kind == "thought" else ()
    return Node(
        cast(Literal["event", "thought", "chat"], kind),
        text,
        round((moment - _midnight(now)).total_seconds()),
        min(10, max(1, round(fields.number("poignancy")))),
        subject,
        predicate,
        what,
        evidence,
    )


def _evidence(filling: Any, index: dict[int, int], at: int) -> tuple[int, ...]:
    """The positions of the nodes that the filling of the one at position `at` names."""
    named = filling if isinstance(filling, list) else [filling]
    found = (_NODE.fullmatch(name) for name in named if isinstance(name, str))
    places = (index.get(int(number[1])) for number in found if number)
    return tuple(place for place in places if place is not None and place != at)


def past_of(
    name: str,
    scratch: Fields,
    memories: tuple[Node, ...],
    places: tuple[str, ...],
    grid: GridMap,
    now: datetime,
) -> Past | None:
    """What `scratch.json`, memories and known places say about the time before `now`.

    None: nothing but places.
    """
    stopped = scratch.content.get("curr_time") is not None
    if not stopped and not memories:
        return None
    chats = sorted((node for node in memories if node.kind == "chat"), key=created)
    talked = {node.object: node.created_s for node in chats}
    past = Past(
        memories=memories,
        talked={of: talked[of] for of in sorted(talked) if of != name},
        places=places,
    )
    if not stopped:
        return past
    if abs(_moment(scratch, "curr_time", CLOCK) - now) > timedelta(hours=1):
        raise scratch.wrong("curr_time", f"the time of the simulation (reverie/meta.json), {now}")
    now_s = round((now - _midnight(now)).total_seconds())
    at = grid.free_tile(map_tile(scratch, "curr_tile", grid))
    activity, doing = _activity(scratch, grid, now, at)
    return replace(
        past,
        unreflected=scratch.whole("importance_trigger_curr"),
        day=_day(scratch, now_s),
        activity=activity,
        doing=doing,
        at=at,
    )


def _day(scratch: Fields, now_s: int) -> Day | None:
    """The plan of the day of `now_s`, in detail from then on; None: there is none."""
    hours = schedule_of(scratch, "f_daily_schedule_hourly_org")
    if not hours:
        return None
    detailed = schedule_of(scratch, "f_daily_schedule")
    tasks = [
        Task(found[2], task.start_s, task.end_s)
        for task in detailed
        if task.end_s > now_s and (found := _DETAILED.fullmatch(task.what))
    ]
    return Day(0, scratch.texts("daily_req"), hours, tasks)


def schedule_of(scratch: Fields, field: str) -> list[Task]:
    """A list of [text, minutes] from midnight on as tasks; the last one lasts to the next midnight.

    Entries of no or negative length, which the project's revisions leave, are left out. What other
    projects add to an entry is ignored.
    """
    entries = scratch.content.get(field) or []
    tasks: list[Task] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        what, minutes = (*entry, None, None)[:2] if isinstance(entry, list) else (None, None)
        length = number_of(minutes)
        if not isinstance(what, str) or length is None:
            raise scratch.wrong(field, "a list of [text, minutes]")
        start_s = tasks[-1].end_s if tasks else 0
        end_s = min(DAY_S, start_s + round(length * MINUTE_S))
        if end_s > start_s:
            tasks.append(Task(what, start_s, end_s))
    if tasks:
        tasks[-1] = replace(tasks[-1], end_s=DAY_S)
    return tasks


def _activity(
    scratch: Fields, grid: GridMap, now: datetime, at: Tile
) -> tuple[Activity | None, Doing]:
    """The current activity; it is carried on where it is if the person has arrived.

    None: there is none, or it is a conversation, which ends here. The person is then idle.
    """
    if scratch.content.get("act_description") is None or scratch.content.get("chatting_with"):
        return None, Doing(IDLE, place=grid.arena_names[grid.arenas[at[1], at[0]]])
    what = scratch.text("act_description")
    found = _DETAILED.fullmatch(what)
    what = found[2] if found else what
    began = _past_moment(scratch, "act_start_time", CLOCK, now)
    try:
        ends = began + timedelta(minutes=scratch.number("act_duration"))
    except OverflowError:
        raise scratch.wrong(
            "act_duration", "minutes, after which it is not the year 10000"
        ) from None
    until_s = round((ends - _midnight(now)).total_seconds())
    goal = at
    if way := scratch.content.get("planned_path"):
        if not isinstance(way, list):
            raise scratch.wrong("planned_path", "a list of tiles")
        end = map_tile(Fields({"planned_path": way[-1]}, scratch.place), "planned_path", grid)
        goal = grid.free_tile(end)
    place = grid.arena_names[grid.arenas[goal[1], goal[0]]]
    named = scratch.text("act_address").split(":")[3:]  # <random> is any tile of the arena
    thing = named[0] if named and named[0] in grid.object_names else ""
    emoji = scratch.content.get("act_pronunciatio")
    emoji = emoji if isinstance(emoji, str) else ""
    state = scratch.content.get("act_obj_description")
    state = state if isinstance(state, str) else ""
    asleep = is_sleep(what) or what == TO_BED
    activity = Activity(what, place, thing, state, goal, until_s, asleep)
    if asleep and goal == at:
        return activity, Doing(SLEEPING, emoji, place, thing, asleep=True)
    return activity, Doing(what, emoji, place, thing, state, until_s=until_s)


def map_tile(fields: Fields, field: str, grid: GridMap) -> Tile:
    """A tile of the map."""
    tile = fields.tile(field)
    if grid.contains(tile):
        return tile
    raise fields.wrong(field, f"a tile of the map, which is {grid.width} x {grid.height}")


def _moment(fields: Fields, field: str, form: str) -> datetime:
    try:
        return datetime.strptime(fields.text(field), form)
    except ValueError:
        raise fields.wrong(field, f"a time such as {datetime(2023, 2, 13):{form}}") from None


def _past_moment(fields: Fields, field: str, form: str, now: datetime) -> datetime:
    moment = _moment(fields, field, form)
    if moment > now:
        raise fields.wrong(field, f"a time up to that of the simulation, {now}")
    return moment


def _midnight(now: datetime) -> datetime:
    return datetime(now.year, now.month, now.day)


def relations_of(
    name: str, texts: Sequence[str], memories: Sequence[Node], others: Sequence[str]
) -> dict[str, str]:
    """Other people's names -> a sentence about each one whom the person knows.

    It is the first sentence of `texts` that names that person; otherwise the newest thought that
    does, or the last conversation.
    """
    first_names = [other.split()[0] for other in (*others, name)]
    sentences = [
        part
        for text in texts
        for part in re.split(r"(?<=[.!?])\s+|(?<=[。！？])|\n+", text)
        if part
    ]
    relations = {}
    for other in others:
        called = [other]
        if first_names.count(other.split()[0]) == 1:
            called.append(other.split()[0])
        either = "|".join(map(re.escape, called))
        names = re.compile(rf"(?<!{_LETTER})(?:{either})(?!{_LETTER})")
        newest = [node.text for node in reversed(memories) if node.kind == "thought"]
        newest += [node.text for node in reversed(memories) if node.kind == "chat"]
        found = next((text for text in (*sentences, *newest) if names.search(text)), None)
        if found is not None:
            relations[other] = " ".join(found.split())
    return relations
