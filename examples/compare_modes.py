"""Generate an hour of a small society and measure the gain of out-of-order execution.

Run it from anywhere: python examples/compare_modes.py
"""

from metropolis.runtime.replays.replay import Setting, mine_dependencies, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.trace.generate.largeville import generate

trace = generate(agents=10, hours=(8, 9), seed=0)
setting = Setting.of(trace.meta, SimulatedFleet.uniform("llama-3-8b/l4", 4))
dependencies = mine_dependencies(trace, setting)
print(f"{trace.agents} agents, {trace.steps} steps, {len(trace.calls)} calls; all simulated")
print(f"{dependencies.dependencies_per_agent_step:.2f} true dependencies per agent-step")
for mode in ("lockstep", "conservative", "versioned", "oracle"):
    result = replay(trace, mode, setting, dependencies)
    print(
        f"{mode:13} {result.makespan_sim_s:8.1f} sim_s, {result.achieved_parallelism:.2f} in flight"
    )
