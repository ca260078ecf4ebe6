"""Figures of simulations in the format of Generative Agents: recorded ones, and our own.

Run it from anywhere: python examples/genagent_figures.py [SIMULATION ...]. A simulation is a folder
of `storage/` in a checkout, or one that `metropolis export genagent` wrote; it has run. Steps count
from midnight; in our files those before the run's first one are left out. Without one, SmallVille
is run until eight, exported and shown. Prints a column for each; `-`: its files cannot show this.
"A day" is the mean of a person and 24 hours. In our files a renewed memory counts once. Two days
take a few seconds.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

from metropolis import Client, Simulation
from metropolis.export.genagent import GenAgentExport
from metropolis.llm.backends.scripted import Scripted
from metropolis.worlds import smallville

Json = dict[str, Any]
IDLE, WAITING, PLAN_IMPORTANCE = "idle", "waiting to start", 5
AT_NIGHT, BY_DAY = ("01", "02", "03"), range(9, 19)


def own(folder: Path) -> Path:
    """Our town from midnight to eight, exported."""
    town = smallville.make(start=datetime(2023, 2, 13))
    client = Client(Scripted(town.author))
    Simulation(town.world, town.agents, client, out=folder / "run").run(8 * 360)
    GenAgentExport(folder / "run").write(folder / "ours")
    return folder / "ours"


def read(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text("utf-8"))


def average(values: Iterable[float]) -> str:
    """The mean of the values; of conditions, the share that hold."""
    found = list(values)
    form = ".1%" if found and isinstance(found[0], bool) else ".1f"
    return f"{mean(found):{form}}" if found else "-"


def spread(values: Iterable[float]) -> str:
    """The least, the median and the greatest value."""
    found = sorted(values)
    return f"{found[0]:.4g} / {median(found):.4g} / {found[-1]:.4g}" if found else "-"


def nodes_of(mind: Path) -> list[Json]:
    """What a person remembers, in the order of first occurrence, beside what came before it."""
    nodes = read(mind / "associative_memory/nodes.json")
    retention = read(mind / "scratch.json").get("retention", 5)
    triples: list[tuple[str, ...]] = []
    rated: dict[str, int] = {}
    outline = ""
    ordered: list[Json] = sorted(nodes.values(), key=lambda node: node["node_count"])
    for node in ordered:
        kind, text, evidence = node["type"], node["description"], node["filling"]
        if kind == "event":
            triple = tuple(node[part] for part in ("subject", "predicate", "object"))
            node["recent"] = triple in triples[-retention:]
            triples.append(triple)
        elif kind == "thought" and evidence:
            talk = len(evidence) == 1 and nodes[evidence[0]]["type"] == "chat"
            kind = "conclusion" if talk else "insight"
        elif node["predicate"].startswith("plan") and node["poignancy"] == PLAN_IMPORTANCE:
            plan = text.partition(":")[2]
            kind, node["same"] = "later plan" if outline else "plan", plan == outline
            outline = outline or plan
        node |= {"kind": kind, "rated": rated.get(kind + text)}
        rated[kind + text] = node["poignancy"]
    return ordered


def memories(folder: Path, days: float) -> Iterator[tuple[str, str]]:
    """What the people remember at the end, after `days` days."""
    minds = [person / "bootstrap_memory" for person in (folder / "personas").iterdir()]
    kinds: dict[str, list[Json]] = defaultdict(list)
    for mind in minds:
        for node in nodes_of(mind):
            kinds[node["kind"]].append(node)
    texts = {kind: [node for node in of if node["rated"] is None] for kind, of in kinds.items()}
    events, new, later = kinds["event"], texts.get("event", []), kinds["later plan"]
    for kind in ("event", "chat", "conclusion", "insight"):
        a_day = (len(of.get(kind, ())) / len(minds) / days for of in (kinds, texts))
        yield f"{kind}s a day / their texts", " / ".join(f"{number:.1f}" for number in a_day)
        rated = (node["poignancy"] for node in kinds[kind] if node["object"] != IDLE)
        yield f"importance of {kind}s, without unused objects", average(rated)
    yield "event texts of unused objects", average(of["object"] == IDLE for of in new)
    yield "events from 1 to 4 h", average(of["created"][11:13] in AT_NIGHT for of in events)
    # Renewed memories are in the order in which they occurred first.
    recent = (of["recent"] for of in events if len(new) < len(events))
    yield "events whose triple is among the last remembered", average(recent)
    told = [node for of in kinds.values() for node in of if node["object"] != IDLE]
    yield "known texts, without unused objects", average(of["rated"] is not None for of in told)
    again = (of["rated"] != of["poignancy"] for of in told if of["rated"] is not None)
    yield "- with another importance", average(again)
    plans = (len(of) / len(minds) for of in (kinds["plan"], later))
    yield "plans per person, first / later days", " / ".join(f"{number:.1f}" for number in plans)
    yield "- later ones as on the first day", average(plan["same"] for plan in later)
    towns = [town for mind in minds for town in read(mind / "spatial_memory.json").values()]
    rooms = sum(len(sector) for town in towns for sector in town.values())
    yield "rooms known at the end", f"{rooms / len(minds):.1f}"


def movement(folder: Path) -> Iterator[tuple[int, Json]]:
    """Each step and what has changed in it, or all; files without content are left out."""
    if (folder / "master_movement.json").exists():
        yield from ((int(step), of) for step, of in read(folder / "master_movement.json").items())
        return
    paths = sorted((folder / "movement").glob("*.json"), key=lambda path: int(path.stem))
    yield from ((int(path.stem), read(path)["persona"]) for path in paths if path.stat().st_size)


def apart(people: Json, pair: Iterable[str]) -> int:
    """The Chebyshev distance of two people."""
    (x1, y1), (x2, y2) = (people[name]["movement"] for name in pair)
    return int(max(abs(x1 - x2), abs(y1 - y2)))


def moves(folder: Path, days: float, step_s: int, first: int) -> Iterator[tuple[str, str]]:
    """What the people do; before step `first` they stand still."""
    now: Json = {}
    doing: dict[str, tuple[str, str]] = {}  # activity, sector
    begun: dict[str, tuple[int, Json]] = {}  # lines -> first step with them, people before it
    talks: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)  # step, distance
    shared, elsewhere, talking, waits = [], [], [], 0
    for step, changed in movement(folder):
        former, now = now, now | changed
        showing = defaultdict(list)
        for name, of in now.items():
            if of["chat"]:
                showing[json.dumps(of["chat"])].append(name)
            elif name in changed:
                what, _, address = of["description"].rpartition(" @ ")
                (did, left), at = doing.get(name, ("", "")), [*address.split(":"), ""][1]
                if what != did:
                    waits += what.startswith(WAITING)
                    by_day = step * step_s // 3600 % 24 in BY_DAY
                    elsewhere += [at != left] if by_day and at and left else []
                    doing[name] = what, at or left
        for lines, names in showing.items():
            begun.setdefault(lines, (step, former or now))
            if len(names) == 2:
                talks[*sorted(names), lines].append((step, apart(now, names)))
        if step < first:
            continue
        talking += [bool(of["chat"]) for of in now.values()]
        standing = Counter(tuple(of["movement"]) for of in now.values())
        shared += [standing[tuple(of["movement"])] > 1 for of in now.values()]
    spans = sorted((pair, of[0][0], of[-1][0] + 1) for (*pair, _), of in talks.items())
    follow = ((one[2], other[1]) for one, other in pairwise(spans) if one[0] == other[0])
    pauses = ((begin - end) * step_s / 60 for end, begin in follow)
    hours = (steps[0][0] * step_s / 3600 % 24 for steps in talks.values())
    yield "conversations a day", f"{2 * len(talks) / len(now) / days:.1f}"
    yield "- utterances", average(len(json.loads(lines)) for *_, lines in talks)
    yield "- minutes", average(len(steps) * step_s / 60 for steps in talks.values())
    yield "- begin, hour: least / median / most", spread(hours)
    same = (steps[0][0] == begun[lines][0] for (*_, lines), steps in talks.items())
    yield "- shown by both from the same step on", average(same)
    yield "- minutes between two of a pair", spread(pauses)
    yield "- tiles apart before", spread(apart(begun[lines][1], pair) for *pair, lines in talks)
    yield "- tiles apart meanwhile", spread(of for steps in talks.values() for _, of in steps)
    yield "time in conversation", average(talking)
    yield "waits a day", f"{waits / len(now) / days:.2f}"
    yield "person-steps on a tile with others", average(shared)
    yield "activities in another sector, 9-19 h", average(elsewhere)


def column(folder: Path) -> dict[str, str]:
    """All figures of one simulation."""
    nested = folder / "reverie" / "meta.json"
    meta = read(nested if nested.exists() else folder / "meta.json")
    step_s, first = meta["sec_per_step"], meta.get("metropolis_first_step", 0)
    days = (meta["step"] - first) * step_s / 86400
    about = {"": folder.name, "people, hours": f"{len(meta['persona_names'])}, {days * 24:g}"}
    return about | dict(memories(folder, days)) | dict(moves(folder, days, step_s, first))


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("simulations", type=Path, nargs="*", metavar="SIMULATION")
    folders = parser.parse_args(arguments).simulations
    columns = []
    with TemporaryDirectory() as temporary:
        for folder in folders or [own(Path(temporary))]:
            try:
                columns.append(column(folder))
            except (OSError, ValueError, KeyError, ZeroDivisionError) as error:
                parser.error(f"{folder} holds no simulation that has run ({error})")
    for row in columns[0]:
        print(" | ".join([row, *(one[row] for one in columns)]))


if __name__ == "__main__":
    main()
