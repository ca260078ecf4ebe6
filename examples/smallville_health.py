"""The health of SmallVille over days, from midnight: does the town stay alive and consistent?

Run it from anywhere: python examples/smallville_health.py [HOURS] [--seed N] [--json]
With --run FOLDER it examines a run of `metropolis run smallville`, repeated from its own answers.
A day takes a minute. The exit status is 1 if a check fails.
"""

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path

from metropolis import Client, Simulation
from metropolis.cli.run_options import options_of
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.rerun import Recorded, Rerun
from metropolis.world.saving import restore
from metropolis.worlds import smallville
from metropolis.worlds.smallville.health import Health
from metropolis.worlds.smallville.world import SmallVille

CHECKS = {
    "walls_crossed": ("walls crossed", lambda it: it == 0, "0"),
    "tiles_shared": ("agent-steps on a shared tile", None, "recorded runs: 5-6 %"),
    "empty_plans": ("revised plans that were empty", lambda it: it == 0, "0"),
    "duplicate_memories": ("duplicate memories", lambda it: it == 0, "0"),
    "duplicates_recalled": ("duplicates among recalled memories", lambda it: it == 0, "0"),
    "texts_rated_again": ("ratings of a text rated before", None, "0 if ratings are reused"),
    "distinct_sentences": ("distinct sentences", None, ""),
    "later_conversations": ("conversations of later days / day 1", lambda it: it >= 0.9, "90 %"),
}
SHARES = {"tiles_shared", "duplicates_recalled", "texts_rated_again", "distinct_sentences"}
SHARES |= {"later_conversations"}


def live(hours, seed):
    """Run the town from midnight with the scripted author."""
    scenario = smallville.make()
    start, profiles = datetime.fromisoformat("2023-02-13"), smallville.town_profiles()
    town = SmallVille(scenario.world.map, profiles, start=start)
    health = Health(town, profiles)

    def author(request, random):
        health.watch(request)
        return scenario.author(request, random)

    steps = round(hours * 360)
    simulation = Simulation(town, scenario.agents, Client(Scripted(author)), seed=seed)
    with progress_bar(steps, "steps") as (advance, _):
        for record in simulation.steps(steps):
            health.read(record)
            advance(1)
    return health.report({agent.name: agent.memory for agent in scenario.agents})


def repeated(folder):
    """Repeat the run in `folder` in lockstep, from its own answers."""
    scenario, origin = options_of(folder, {}, trust=False).scenario(), RunDirectory(folder)
    health = Health(scenario.world, [agent.profile for agent in scenario.agents])

    class Watched(Recorded):
        async def complete(self, request):
            health.watch(request)
            return await super().complete(request)

    rerun = Rerun(origin, scenario.world, scenario.agents, {})
    rerun.answers = Watched(origin)
    steps = origin.recorded_steps
    with progress_bar(steps, "steps") as (advance, _):
        for record, _ in rerun.steps(rerun.checkpoint(0), steps):
            health.read(record)
            advance(1)
    for agent in scenario.agents:
        restore(agent, rerun.checkpoint_after(steps).agents[agent.name])
    return health.report({agent.name: agent.memory for agent in scenario.agents})


def value(name, found):
    """A figure as text."""
    if found is None:
        return "-"
    return f"{found:.1%}" if name in SHARES else f"{found:,}"


def show(report):
    """Print the figures as tables."""
    print(f"{report['agents']} agents, {report['hours']:g} h; scripted author unless a run's own")
    for name, (title, check, target) in CHECKS.items():
        found = report[name]
        verdict = "" if check is None or found is None else "ok" if check(found) else "FAILS"
        print(f"  {title:<38}{value(name, found):>9}  {verdict:<6}{target}")
    columns = ("day", "hours", "calls", "conversations", "sleep_hours", "work_hours")
    print("\n  " + "".join(f"{name:>14}" for name in columns) + "  distinct so far")
    for day in report["days"]:
        cells = "".join(f"{round(day[name], 1):>14,}" for name in columns)
        print(f"  {cells}  {value('distinct_sentences', day['distinct_sentences']):>15}")
    print("\n  who knows, at the end of each day")
    for mark in report["days"][-1]["knowing"]:
        print(f"  {mark:<38}", *(f"{day['knowing'][mark]:>4}" for day in report["days"]))


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("hours", type=float, nargs="?", default=72)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--run", type=Path, metavar="FOLDER")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
report = repeated(options.run) if options.run else live(options.hours, options.seed)
if options.json:
    print(json.dumps(report, indent=2, ensure_ascii=False))
else:
    show(report)
checked = [(check, report[name]) for name, (_, check, _) in CHECKS.items() if check is not None]
sys.exit(not all(check(found) for check, found in checked if found is not None))
