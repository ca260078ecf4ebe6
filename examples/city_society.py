"""A society of several towns: its cost per agent-step, who travels, and who meets whom.

Run it from anywhere: python examples/city_society.py [AGENTS [HOURS [SEED]]], from six o'clock. The
scripted author answers. Exit status 1 if a passenger perceived somebody outside the carriage, or
somebody crossed a wall.
"""

import argparse
import sys
import time
from collections import Counter

from metropolis import Client, Simulation
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.worlds import city
from metropolis.worlds.city.terrain import SEATS, parts, town_map
from metropolis.worlds.smallville.dialogue import CONVERSATION
from metropolis.worlds.smallville.health import Health

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("agents", type=int, nargs="?", default=100)
parser.add_argument("hours", type=float, nargs="?", default=10)
parser.add_argument("seed", type=int, nargs="?", default=0)
options = parser.parse_args()
agents, hours, seed = options.agents, options.hours, options.seed

scenario = city.make(agents=agents, seed=seed)
world, profiles = scenario.world, [agent.profile for agent in scenario.agents]
railway, perceives, radius = world.railway, world.metric.perceives, world.perception_radius
at = {profile.name: profile.at for profile in profiles}
home = {name: x // town_map().width for name, (x, _) in at.items()}
health, component = Health(world, profiles), {name: name for name in at}
calls, characters = 0, 0
away, passengers, strangers = set(), set(), set()
talks, of_two_towns, aboard_talks, together, outside = 0, 0, 0, 0, 0


def answer(request, random):
    """The author's answer, counted."""
    global calls, characters
    calls, characters = calls + 1, characters + len(request.text)
    return scenario.author(request, random)


simulation = Simulation(world, scenario.agents, Client(Scripted(answer)), seed=seed)
steps, reading_cpu_s, began_cpu_s = round(hours * 360), 0.0, time.process_time()
with progress_bar(steps, "steps") as (advance, _):
    for record in simulation.steps(steps):
        read_cpu_s = time.process_time()
        health.read(record)
        at |= {name: tuple(map(int, body.position)) for name, body in record.writes.items()}
        away |= {name for name, (x, _) in at.items() if x // town_map().width != home[name]}
        carriages = {}
        for name, (x, y) in at.items():
            if side := railway.direction((x, y)):
                seat = railway.seat((x, y), record.step + 1)
                carriages[name] = (side, x - seat) if seat < SEATS else name
        passengers |= carriages.keys()
        for name, carriage in carriages.items():
            near = [other for other in at if perceives(at[name], at[other], radius)]
            same = sum(carriages.get(other) == carriage for other in near)
            together, outside = together + same - 1, outside + len(near) - same
        for event in record.events:
            if event.kind == CONVERSATION:
                one, other = event.source, event["partner"]
                old, new = component[one], component[other]
                component = {of: new if own == old else own for of, own in component.items()}
                talks += 1
                if home[one] != home[other]:
                    of_two_towns += 1
                    strangers |= {one, other}
                aboard_talks += one in carriages
        reading_cpu_s += time.process_time() - read_cpu_s
        advance(1)
cpu_s = time.process_time() - began_cpu_s - reading_cpu_s

commuters = sum(parts(of.workplace)[1] not in ("", parts(of.home)[1]) for of in profiles)
largest = max(Counter(component.values()).values())
known = sum(len(arenas) for agent in scenario.agents for arenas in agent.known.values())
report = health.report({agent.name: agent.memory for agent in scenario.agents})
day = report["days"][0]
for label, value in {
    "CPU per agent-step, microseconds": f"{cpu_s / agents / steps * 1e6:.0f}",
    "calls per agent": f"{calls / agents:.1f}",
    "characters per prompt": f"{characters / max(1, calls):.0f}",
    "rooms known per agent": f"{known / agents:.1f}",
    "commuters": commuters,
    "were in another town": len(away),
    "took a train": len(passengers),
    "talked with a resident of another town": len(strangers),
    "in the largest component of the talks": f"{largest} of {agents}",
    "conversations, of two towns, aboard": f"{talks}, {of_two_towns}, {aboard_talks}",
    "passengers who saw a passenger, agent-steps": together,
    "passengers who saw a person outside": outside,
    "walls crossed": report["walls_crossed"],
    "agent-steps on a shared tile": f"{report['tiles_shared']:.1%}",
    "hours of sleep, of work": f"{day['sleep_hours']:.1f}, {day['work_hours']:.1f}",
}.items():
    print(f"{label:46} {value}")
sys.exit(outside > 0 or report["walls_crossed"] > 0)
