"""Random histories, and what a viewer should show of them, read the plain way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from metropolis.runtime.folder.history import HistoryWriter
from metropolis.runtime.folder.view_file import ViewFile
from metropolis.trace.schema import TraceMeta
from metropolis.world.appearance import Appearance, Look
from metropolis.world.entities import Entity, Event
from metropolis.world.record import StepRecord

RADIUS = 2.0
APPEARANCE = Appearance(
    label="what",
    speech={"said": "text"},
    dialogue={"talk": "lines"},
    thought={"mused": "text"},
    told={"talk": "with"},
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.lists(texts.filter(bool), min_size=1, max_size=4, unique=True)
places = st.tuples(st.integers(0, 6), st.integers(0, 6))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ViewFile, TraceMeta, list[StepRecord]]:
    """The beginning of a run, its metadata and its steps."""
    agents = draw(names)
    states = st.fixed_dictionaries(
        {},
        optional={
            "what": st.none() | texts | st.integers(0, 3),
            "emoji": texts,
            "place": texts,
            "asleep": st.booleans(),
            "other": st.lists(texts, max_size=2),
        },
    )
    view = ViewFile(
        run="",
        mode="lockstep",
        simulated=True,
        target=9,
        appearance=APPEARANCE,
        beginning=tuple((float(x), float(y)) for x, y in (draw(places) for _ in agents)),
        looks=tuple(_look(draw(states)) for _ in agents),
    )
    who = st.sampled_from([*agents, "a thing"])
    events = st.one_of(
        st.tuples(st.just("said"), st.fixed_dictionaries({"text": texts})),
        st.tuples(st.just("mused"), st.fixed_dictionaries({"text": texts})),
        st.tuples(st.just("waved"), st.dictionaries(texts, texts | st.integers(), max_size=2)),
        st.tuples(
            st.just("talk"),
            st.fixed_dictionaries(
                {"with": who, "lines": st.lists(st.tuples(who, texts), max_size=3)}
            ),
        ),
    )
    steps = []
    for step in range(draw(st.integers(0, 9))):
        writes = {
            name: Entity(name, draw(places), "agent", draw(states))
            for name in draw(st.lists(who, max_size=3, unique=True))
        }
        happened = [
            Event(step, draw(who), draw(places), kind, data)
            for kind, data in draw(st.lists(events, max_size=2))
        ]
        steps.append(StepRecord(step, {}, dict(sorted(writes.items())), happened))
    return view, TraceMeta("w", tuple(agents), RADIUS, 1.0), steps


def write(path: Path, steps: Sequence[StepRecord], before: int = 0) -> None:
    """Write the steps from `before` on to the history, which has those before."""
    writer = HistoryWriter(path, before, "0" * 16)
    for record in steps[before:]:
        writer.append(record, calls=2)
    writer.close()


def _look(state: dict[str, Any]) -> Look:
    label = state.get("what")
    return Look(
        "" if label is None else str(label),
        state.get("emoji", ""),
        state.get("place", ""),
        state.get("asleep", False),
    )


class Expected:
    """What a direct reading of the history says."""

    def __init__(self, view: ViewFile, meta: TraceMeta, steps: Sequence[StepRecord]) -> None:
        ids = {name: agent for agent, name in enumerate(meta.agents)}
        at = list(view.beginning)
        looks = list(view.looks)
        self.positions: list[list[tuple[float, float]]] = []
        self.looks: list[list[Look]] = []
        self.moments: list[list[Any]] = []
        for record in steps:
            self.positions.append([*at])
            self.looks.append([*looks])
            for name, entity in record.writes.items():
                if name in ids and entity is not None:
                    at[ids[name]] = entity.position
                    new = _look(dict(entity.state))
                    if new != looks[ids[name]]:
                        looks[ids[name]] = new
            for agent, (old, new) in enumerate(zip(self.looks[-1], looks, strict=True)):
                if old != new:
                    extra = {
                        key: getattr(new, key)
                        for key in ("emoji", "place", "asleep")
                        if getattr(new, key)
                    }
                    self.moments.append([record.step, agent, "does", new.label, extra or None])
            for event in record.events:
                self._happened(record.step, event, ids, at)
        self.positions.append([*at])

    def _happened(self, step: int, event: Event, ids: dict[str, int], at: Sequence[Any]) -> None:
        def near() -> list[int]:
            x, y = event.position
            return [
                agent
                for agent, (ax, ay) in enumerate(at)
                if max(abs(ax - x), abs(ay - y)) <= RADIUS
            ]

        def add(who: str, kind: str, text: str, heard: list[int] | None) -> None:
            if who in ids:
                to = None if heard is None else {"to": [a for a in heard if a != ids[who]]}
                self.moments.append([step, ids[who], kind, text, to])

        match event.kind:
            case "said":
                add(event.source, "says", event["text"], near())
            case "mused":
                add(event.source, "thinks", event["text"], None)
            case "waved":
                add(
                    event.source,
                    "waved",
                    " ".join(str(event.data[key]) for key in sorted(event.data)),
                    None,
                )
            case "talk":
                both = dict.fromkeys([event["with"], event.source])
                for speaker, line in event["lines"]:
                    add(speaker, "says", line, [ids[name] for name in both if name in ids])
