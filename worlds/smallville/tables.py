"""A resident's mind as tables: what `metropolis show` prints."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from metropolis.worlds.smallville.memory import Node, created
from metropolis.worlds.smallville.state import Task, clock, day_of, end_clock

if TYPE_CHECKING:
    from metropolis.world.base import Tables
    from metropolis.worlds.smallville.resident import Resident

MEMORIES_MAX = 25
"""The newest memories, which are shown."""


def tables_of(me: Resident) -> Tables:
    """Present state, schedule, relations and newest memories."""
    nodes = sorted(me.memory.nodes, key=created)
    shown = nodes[-MEMORIES_MAX:]
    count = f"{len(shown)} newest of {len(nodes):,}" if len(shown) < len(nodes) else f"{len(nodes)}"
    return {
        "present": [{"what": what, "": text} for what, text in _present(me).items()],
        "schedule": [*_schedule(me)],
        "relations": [*_relations(me)],
        f"memories: {count}": [_memory(me, node) for node in shown[::-1]],
    }


def _present(me: Resident) -> dict[str, str]:
    """What it does, and where it is bound for: its body may be on the way there."""
    activity, talk = me.activity, me.talk
    bound = activity.goal if talk is None else talk.meeting
    place = "" if talk else ": ".join(filter(None, (activity.place, activity.thing)))
    texts = {
        "last step": _when(me, me.now_s),
        "is": me.doing,
        "until": _when(me, talk.until_s if talk else activity.until_s),
        "bound for": f"{place} {list(bound)}".lstrip(),
        "interrupted": activity.what if talk else "",
        "goal": me.goal,
        "until it reflects": f"{me.unreflected} points of importance",
    }
    unknown = () if activity.what or talk else ("until", "bound for")  # before the first step
    return {what: text for what, text in texts.items() if text and what not in unknown}


def _schedule(me: Resident) -> list[dict[str, str]]:
    """The entries of the day, each followed by its tasks as far as they are planned."""
    rows = []
    for hour in me.day.hours:
        rows.append(_entry(me, hour, {"plan": hour.what, "task": ""}))
        rows += [
            _entry(me, task, {"plan": "", "task": task.what})
            for task in me.day.tasks
            if hour.start_s <= task.start_s < hour.end_s
        ]
    return rows


def _entry(me: Resident, task: Task, texts: dict[str, str]) -> dict[str, str]:
    """A row of the schedule; its last column marks what is planned for now."""
    is_now = task.start_s <= me.now_s < task.end_s
    return {
        "from": clock(task.start_s),
        "to": end_clock(task),
        **texts,
        "now": "<" if is_now else "",
    }


def _relations(me: Resident) -> list[dict[str, str]]:
    """Everybody whom the resident knew at first, or has talked with."""
    rows = []
    for name in sorted({*me.profile.relations, *me.talked}):
        about = [
            node for node in me.memory.nodes if node.kind == "thought" and name in node.text
        ]  # fmt: skip
        newest = max(about, key=created, default=None)
        rows.append(
            {
                "resident": name,
                "last talk": _when(me, me.talked[name]) if name in me.talked else "-",
                "newest thought about them": "-" if newest is None else newest.text,
            }
        )
    return rows


def _memory(me: Resident, node: Node) -> dict[str, str]:
    return {
        "time": _when(me, node.created_s),
        "kind": node.kind,
        "importance": f"{node.importance}",
        "text": node.text,
    }


def _when(me: Resident, then_s: int) -> str:
    return f"{me.first_day + timedelta(days=day_of(then_s)):%a %d %b} {clock(then_s)}"
