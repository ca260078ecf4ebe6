"""The health of SmallVille over days, from midnight: does the town stay alive and consistent?

Run it from anywhere: python examples/smallville_health.py [HOURS] [--seed N] [--preset P] [--json]
With --run FOLDER it examines a run of `metropolis run smallville`, repeated from its own answers.
A day takes half a minute. The exit status is 1 if a check fails. Figures of days, and the share of
shared tiles, are those of whole days, so shorter runs have fewer checks.
"""

import argparse
import json
import sys
from datetime import datetime
from math import inf
from pathlib import Path

from metropolis import Client, Simulation
from metropolis.cli.run_options import options_of
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.reruns.fork import check_step
from metropolis.runtime.reruns.rerun import Recorded, Rerun
from metropolis.types import MetropolisError
from metropolis.world.saving import restore
from metropolis.worlds import smallville
from metropolis.worlds.smallville.health import Health
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.world import SmallVille

NONE, ANY = (0, 0), (0, inf)
CHECKS = {
    "walls_crossed": ("walls crossed", NONE, "0"),
    # the limit is for whole days: in the morning the share is larger
    "tiles_shared_by_day": (
        "agent-steps on a shared tile",
        (0, 0.06),
        "at most 6 %: recorded 4.7-5.7 %",
    ),
    "empty_plans": ("revised plans that were empty", NONE, "0"),
    "duplicate_memories": ("duplicate memories", NONE, "0"),
    "duplicates_recalled": ("duplicates among recalled memories", NONE, "0"),
    "texts_rated_again": ("ratings of a text rated before", ANY, "0 if ratings are reused"),
    "sleep_hours": ("hours of sleep a day", (6.2, 8.5), "6.2-8.5: recorded, means of runs"),
    # 25 to 79 % of the time from nine to five; our hours are those of the whole day
    "work_hours": ("hours at work, of those with a workplace", (2.0, 6.3), "2.0-6.3: recorded"),
    "later_conversations": ("conversations of later days / day 1", (0.9, inf), "at least 90 %"),
    # 2.4 standard errors, if both days have 300 independent conversations
    "last_conversations": ("conversations of the last day / day 1", (0.8, inf), "at least 80 %"),
    "distinct_sentences": ("distinct sentences, all days together", ANY, "falls with the days"),
    # compares as many conversations as day 1 has
    "later_sentences": ("distinct sentences of later days / day 1", (0.9, inf), "at least 90 %"),
    "news_heard": ("first hearings of a fact per day, minimum", (1, inf), "some every day"),
    "festival": ("know of the festival, end of day 2", (0.42, 0.62), "paper: 52 %; 10 points"),
    "candidate": ("know of the candidate, end of day 2", (0.22, 0.42), "paper: 32 %; 10 points"),
}
"""Figure -> title, the least and greatest value that passes, the reason for them.

"Recorded" are the public runs of Generative Agents in docs/smallville.md.
"""
SHARES = {"tiles_shared_by_day", "duplicates_recalled", "texts_rated_again", "distinct_sentences"}
SHARES |= {"later_conversations", "last_conversations", "later_sentences"}
NEWS = {"festival": "lantern festival, six", "candidate": "candidate, mayor"}
"""Figure -> mark of the fact. They are checked with the settings of the paper."""
SHARES |= NEWS.keys()


def live(hours=72, seed=0, preset="paper"):
    """Run the town from midnight with the scripted author."""
    scenario = smallville.make(preset=preset)
    start = datetime.fromisoformat("2023-02-13")
    profiles = [agent.profile for agent in scenario.agents]
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
    return complete(health, scenario.agents)


def repeated(folder):
    """Repeat the run in `folder` in lockstep, from its own answers."""
    scenario, origin = options_of(folder, {}, trust=False).scenario(), RunDirectory(folder)
    if not isinstance(scenario.world, SmallVille):
        raise MetropolisError(f"{folder}: is a run of {scenario.world.name}, not of smallville")
    health = Health(scenario.world, [agent.profile for agent in scenario.agents])

    class Watched(Recorded):
        async def complete(self, request):
            health.watch(request)
            return await super().complete(request)

    rerun = Rerun(origin, scenario.world, scenario.agents, {})
    check_step(origin, 0)
    rerun.answers = Watched(origin)
    steps = origin.recorded_steps
    with progress_bar(steps, "steps") as (advance, _):
        for record, _ in rerun.steps(rerun.checkpoint(0), steps):
            health.read(record)
            advance(1)
    for agent in scenario.agents:
        restore(agent, rerun.checkpoint_after(steps).agents[agent.name])
    return complete(health, scenario.agents)


def complete(health, residents):
    """The report, with the shares of residents that know the news of `NEWS`; None: not checked."""
    report = health.report({resident.name: resident.memory for resident in residents})
    of_paper = all(resident.settings == PRESETS["paper"] for resident in residents)
    # the festival and the election are news of the first day, which begins at midnight
    days = report["days"] if report["days"][0]["hours"] == 24 and of_paper else []
    knowing = days[1]["knowing"] if len(days) > 1 and days[1]["hours"] == 24 else {}
    shares = {name: knowing.get(mark) for name, mark in NEWS.items()}
    return report | {
        name: None if count is None else count / len(residents) for name, count in shares.items()
    }


def passes(name, found):
    """Whether a figure is within its bounds; one that is not known passes."""
    low, high = CHECKS[name][1]
    return found is None or low <= found <= high


def value(name, found):
    """A figure as text."""
    if found is None:
        return "-"
    return f"{found:.1%}" if name in SHARES else f"{round(found, 1):,}"


def show(report, origin):
    """Print the figures as tables."""
    print(f"{report['agents']} agents, {report['hours']:g} h; {origin}")
    for name, (title, bounds, reason) in CHECKS.items():
        found = report[name]
        verdict = "" if bounds == ANY or found is None else "ok" if passes(name, found) else "FAILS"
        print(f"  {title:<42}{value(name, found):>9}  {verdict:<6}{reason}")
    columns = ("day", "hours", "calls", "conversations", "sleep_hours", "work_hours", "news_heard")
    print("\n  " + "".join(f"{name:>14}" for name in columns) + "  distinct so far")
    for day in report["days"]:
        cells = "".join(f"{round(day[name], 1):>14,}" for name in columns)
        print(f"  {cells}  {value('distinct_sentences', day['distinct_sentences']):>15}")
    print("\n  who knows, at the end of each day")
    for mark in report["days"][-1]["knowing"]:
        print(f"  {mark:<38}", *(f"{day['knowing'][mark]:>4}" for day in report["days"]))


def main(arguments=None):
    """Print the report; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hours", type=float, nargs="?", help="default: 72")
    parser.add_argument("--seed", type=int, help="default: 0")
    parser.add_argument("--preset", choices=PRESETS, help="default: paper")
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("hours", "seed", "preset")}
    given = {name: value for name, value in given.items() if value is not None}
    if options.run and given:
        parser.error("--run takes all from the run; leave out HOURS, --seed and --preset")
    try:
        report = repeated(options.run) if options.run else live(**given)
    except MetropolisError as error:
        parser.error(f"{error}")
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        author = f"scripted author, preset {options.preset or 'paper'}"
        show(report, options.run or author)
    return int(not all(passes(name, report[name]) for name in CHECKS))


if __name__ == "__main__":
    sys.exit(main())
