"""Days of SmallVille from midnight, beside the original of Generative Agents.

Run it from anywhere: python examples/smallville_day.py [HOURS [SEED [PRESET]]]. The preset is
`code-1.0`, which rates every event anew as the original does, or `paper`. A day takes a minute or
two. All figures are simulated, except those of the paper and the recorded ones.
"""

import argparse
from datetime import datetime

import numpy as np

from metropolis import Client, Simulation
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.worlds import smallville
from metropolis.worlds.smallville.recorded import TOKENS
from metropolis.worlds.smallville.settings import PRESETS
from metropolis.worlds.smallville.world import SmallVille

STEPS_PER_DAY = 8640

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("hours", type=float, nargs="?", default=24)
parser.add_argument("seed", type=int, nargs="?", default=0)
parser.add_argument("preset", choices=PRESETS, nargs="?", default="code-1.0")
options = parser.parse_args()
hours, seed, preset = options.hours, options.seed, options.preset

scenario = smallville.make(preset=preset)
profiles = [agent.profile for agent in scenario.agents]
town = SmallVille(scenario.world.map, profiles, start=datetime.fromisoformat("2023-02-13"))
llm = VirtualInstances(Scripted(scenario.author), SimulatedFleet.uniform("llama-3-8b/l4", 1))
simulation = Simulation(town, scenario.agents, Client(llm), seed=seed)
steps, events = round(hours * 360), []
with progress_bar(steps, "steps") as (advance, _):
    for record in simulation.steps(steps):
        events += record.events
        advance(1)
run = simulation.result()
calls, positions = run.trace.calls, run.trace.positions.astype(int)
functions = np.array(calls.functions)[calls.function]


def in_range(at, *, same_room):
    """The mean number of agents within 4 tiles of an agent, including itself."""
    near = abs(at[:, :, None] - at[:, None]).max(axis=3) <= 4
    if same_room:
        room = town.map.arenas[at[..., 1], at[..., 0]]
        near &= room[:, :, None] == room[:, None]
    return near.sum() / at[..., 0].size


def sharing(at):
    """The share of agents that stand on a tile with others."""
    tile = at[..., 1] * town.map.width + at[..., 0]
    return ((tile[:, :, None] == tile[:, None]).sum(axis=2) > 1).mean()


def figures(first, end):
    """The figures of the steps from `first` to `end`."""
    of = (calls.step >= first) & (calls.step < end)
    at = positions[first:end:6]
    talks = sum(event.kind == "conversation" and first <= event.step < end for event in events)
    asked, rated = ((functions[of] == name).sum() for name in ("decide_to_talk", "event_poignancy"))
    return [
        f"{of.sum():,}",
        f"{calls.prompt_tokens[of].mean():.1f}" if of.any() else "-",
        f"{calls.output_tokens[of].mean():.1f}" if of.any() else "-",
        f"{in_range(at, same_room=False):.2f}",
        f"{in_range(at, same_room=True):.2f}",
        f"{sharing(at):.1%}",
        f"{asked / rated:.2f}" if rated else "-",
        f"{talks}",
    ]


rows = [
    ("LLM calls", "56.7k (paper)"),
    ("prompt tokens a call", "642.6 (paper)"),
    ("output tokens a call", "21.9 (paper)"),
    ("agents within 4 tiles, itself included", "1.85 (paper: dependencies)"),
    ("the same within a room", "-"),
    ("agents on a tile with others", "4.7-5.7 % (recorded)"),
    ("decide_to_talk per event_poignancy", "0.07 (logged)"),
    ("conversations", "139-174 in 46 h of 10 agents (recorded)"),
]
starts = range(0, steps, STEPS_PER_DAY)
days = [figures(first, min(first + STEPS_PER_DAY, steps)) for first in starts]
print(f"{run.agents} agents, {hours:g} h from midnight, preset {preset}, seed {seed}; simulated")
print(f"  {'':<40}", *(f"{f'day {number}':>9}" for number in range(1, len(days) + 1)), "  original")
for number, (name, original) in enumerate(rows):
    print(f"  {name:<40}", *(f"{day[number]:>9}" for day in days), f"  {original}")
print(f"  makespan, out of order, 1 x 8B on L4: {run.makespan_s:,.0f} sim_s")
print("  calls per hour:", *np.bincount(calls.step // 360))
print(f"  {'function':<28}{'calls':>7}{'prompt':>9}{'output':>8}   recorded")
names, counts = np.unique(functions, return_counts=True)
for count, name in sorted(zip(counts, names, strict=True), reverse=True):
    of = functions == name
    prompt, output = TOKENS.get(name, ("-", "-"))
    print(
        f"  {name:<28}{count:>7,}{calls.prompt_tokens[of].mean():>9.0f}"
        f"{calls.output_tokens[of].mean():>8.0f}   {prompt} / {output}"
    )
