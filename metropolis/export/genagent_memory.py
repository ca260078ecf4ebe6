"""An agent's mind as the files of a Generative Agents persona: those that its viewer shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

from metropolis.export.frames import Lines
from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.schema import TraceMeta
from metropolis.types import Step
from metropolis.world.appearance import remembered

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
    midnight = datetime.combine(meta.start.date(), time())
    nodes: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    where = view.appearance.memories
    for number, memory in enumerate(remembered(where, mind) if where else (), 1):
        text, kind, created_s = memory
        kind = kind if kind in KINDS else KINDS[0]
        counts[kind] += 1
        created = midnight + timedelta(seconds=created_s or 0)
        held = int((created - meta.start).total_seconds() // meta.step_s) - 1
        nodes[f"node_{number}"] = {
            "node_count": number,
            "type_count": counts[kind],
            "type": kind,
            "depth": 0,
            "created": created.strftime(NODE_CLOCK),
            "expiration": None,
            "description": text,
            "filling": chats.get(held, ()) if kind == "chat" else [],
        }
    root = folder / "bootstrap_memory"
    (root / "associative_memory").mkdir(parents=True)
    files = {
        "scratch.json": scratch,
        "spatial_memory.json": {},
        "associative_memory/nodes.json": dict(reversed(nodes.items())),
        "associative_memory/embeddings.json": {},
        "associative_memory/kw_strength.json": {
            "kw_strength_event": {},
            "kw_strength_thought": {},
        },
    }
    for name, content in files.items():
        (root / name).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
