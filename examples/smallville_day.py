"""A day of SmallVille from midnight, compared with the day of the original traced by the paper.

Run it from anywhere: python examples/smallville_day.py [HOURS [SEED]]. A whole day takes a minute.
"""

import sys
from datetime import datetime

import numpy as np

from metropolis import Client, Simulation
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.virtual import VirtualInstances
from metropolis.worlds import smallville
from metropolis.worlds.smallville.world import SmallVille

hours = float(sys.argv[1]) if len(sys.argv) > 1 else 24
seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0

scenario = smallville.make()
town = SmallVille(
    scenario.world.map, smallville.town_profiles(), start=datetime.fromisoformat("2023-02-13")
)
llm = VirtualInstances(Scripted(scenario.author), SimulatedFleet.uniform("llama-3-8b/l4", 1))
simulation = Simulation(town, scenario.agents, Client(llm), seed=seed)
steps, events = round(hours * 360), []
with progress_bar(steps, "steps") as (advance, _):
    for record in simulation.steps(steps):
        events += record.events
        advance(1)
run = simulation.result()

# The number of pairs within 4 tiles, each agent with itself included, at every third step.
at = run.trace.positions[::3]
near = sum(int((abs(now[:, None] - now).max(axis=2) <= 4).sum()) for now in at)
active = len({*zip(run.trace.calls.step.tolist(), run.trace.calls.agent.tolist(), strict=True)})
talks = sum(event.kind == "conversation" for event in events)

print(f"{run.agents} agents, {hours:g} h from midnight, seed {seed}; simulated, except the paper")
rows = [
    ("LLM calls", f"{run.calls:,}", "56.7k a day"),
    ("prompt tokens a call", f"{run.prompt_tokens / run.calls:.1f}", "642.6"),
    ("output tokens a call", f"{run.output_tokens / run.calls:.1f}", "21.9"),
    ("agents in range", f"{near / len(at) / run.agents:.2f}", "1.85 (dependencies)"),
    ("calls in an agent-step that makes any", f"{run.calls / active:.1f}", ""),
    ("conversations", f"{talks}", ""),
    ("makespan, out of order, 1 x 8B on L4", f"{run.makespan_s:,.0f} sim_s", ""),
]
for name, ours, paper in rows:
    print(f"  {name:<38}{ours:>14}  {paper}")
print("  calls per hour:", *np.bincount(run.trace.calls.step // 360))
