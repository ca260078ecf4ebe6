"""An agent's mind as the files of a Generative Agents persona: those that its viewer shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.schema import TraceMeta
from metropolis.trace.shown import Lines
from metropolis.types import Step
from metropolis.world.appearance import Memories, number_of, objects_at, text_of, value_at

KINDS = ("event", "thought", "chat")
"""The kinds that the viewer shows; it takes others for events."""
NODE_CLOCK = "%Y-%m-%d %H:%M:%S"


def write_memory(
    folder: Path,
    view: ViewFile,
    meta: TraceMeta,
    scratch: Mapping[str, Any],
    mind: Any,
    chats: Mapping[Step, Lines],
) -> None:
    """Write `bootstrap_memory` into `folder`.

    `mind` is the agent's saved mind, or None; `chats` are the lines of its conversations by the
    step at which they were held.
    """
    where, nodes = view.appearance.memories, {}
    if where is not None:
        nodes = _nodes(where, mind, meta, chats)
    root = folder / "bootstrap_memory"
    (root / "associative_memory").mkdir(parents=True)
    files = {
        "scratch.json": scratch,
        "spatial_memory.json": _places(view.appearance.places, mind, meta),
        "associative_memory/nodes.json": dict(reversed(nodes.items())),
        "associative_memory/embeddings.json": {},
        "associative_memory/kw_strength.json": {"kw_strength_event": {}, "kw_strength_thought": {}},
    }
    for name, content in files.items():
        write_json(root / name, content)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as a JSON file."""
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _nodes(
    where: Memories, mind: Any, meta: TraceMeta, chats: Mapping[Step, Lines]
) -> dict[str, dict[str, Any]]:
    """The content of `nodes.json`, the oldest first."""
    midnight = datetime.combine(meta.start.date(), time())
    nodes: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for number, memory in enumerate(objects_at(mind, where.path), 1):
        kind = text_of(memory.get(where.kind))
        kind = kind if kind in KINDS else KINDS[0]
        counts[kind] += 1
        created = midnight + timedelta(seconds=number_of(memory.get(where.created_s)) or 0)
        filling: Any = []
        if kind == "chat":
            held = int((created - meta.start).total_seconds() // meta.step_s) - 1
            filling = chats.get(held, ())
        elif kind == "thought":
            filling = [f"node_{of + 1}" for of in memory.get(where.evidence) or ()]
        subject, predicate, what = (text_of(memory.get(key)) for key in where.triple)
        nodes[f"node_{number}"] = {
            "node_count": number,
            "type_count": counts[kind],
            "type": kind,
            "depth": 0,
            "created": created.strftime(NODE_CLOCK),
            "expiration": None,
            "subject": subject,
            "predicate": predicate,
            "object": what,
            "description": text_of(memory.get(where.text)),
            "poignancy": number_of(memory.get(where.importance)) or 1,
            "filling": filling,
        }
    return nodes


def _places(path: str, mind: Any, meta: TraceMeta) -> dict[str, Any]:
    """The content of `spatial_memory.json`."""
    known = value_at(mind, path) if path else None
    return {meta.map.name: known} if meta.map is not None and known else {}
