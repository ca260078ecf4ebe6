"""A replay in virtual time with any policy and any dispatcher.

The Python counterpart of `_core.Replay`, which orders by step and uses the least used instance.
For a policy each agent-step is a program.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isinf, isnan

import numpy as np

import metropolis._core as _core
from metropolis.controller.base import NO_AGENT
from metropolis.dispatch.base import Dispatcher
from metropolis.llm.tokens import prefix_pieces
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.runtime.replays.measurements import Measurements, Progress, utilisation
from metropolis.sim.agent_programs import AgentPrograms
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.fleet_schedule import FleetSchedule
from metropolis.trace.schema import Trace


def replay_with_plug_ins(
    trace: Trace,
    controller: _core.Controller,
    fleet: SimulatedFleet,
    plug_ins: tuple[Policy, Dispatcher],
    *,
    schedule: FleetSchedule | None,
    prefix_reuse: bool,
    outstanding_max: int,
    choice: CacheChoice | None,
    progress: Progress | None,
) -> Measurements:
    """Replay `trace` with plug-ins in Python; return the measurements."""
    options = fleet.pool_options(prefix_reuse)
    cluster = SimulatedCluster(fleet.profiles, *plug_ins, options, choice=choice, schedule=schedule)
    by_text = choice is not None
    replaying = PolicyReplay(trace, controller, cluster, outstanding_max, progress, by_text=by_text)
    replaying.run()
    busy_sim_s, count = cluster.busy_sim_s(), len(fleet)
    if schedule is not None:
        count = schedule.gpus
        busy_sim_s = [
            each.tensor_parallel * busy
            for each, busy in zip(fleet.instances, busy_sim_s, strict=True)
        ]
    controller_s = replaying.controller_wall_s / (trace.steps * trace.agents)
    return {
        "makespan_sim_s": replaying.now_sim_s,
        "utilisation": utilisation(sum(busy_sim_s), count, replaying.now_sim_s),
        "preemptions": cluster.preemptions,
        "wasted_calls": 0,
        "controller_us_per_agent_step": controller_s * 1e6,
        "sent_sim_s": replaying.sent_sim_s,
        "started_sim_s": replaying.started_sim_s,
        "completed_sim_s": replaying.completed_sim_s,
        "instance": replaying.instance,
        "dispatched_sim_s": replaying.dispatched_sim_s,
        "committed_sim_s": replaying.committed_sim_s,
        "blocked_by": replaying.blocked_by,
        "cluster": replaying.cluster,
        "wasted": np.zeros(0, np.int32),
    }


@dataclass(slots=True)
class _Cluster:
    step: int
    agents: Sequence[int]
    running: int
    """The number of agents that have not finished the step."""


class PolicyReplay:
    """One run: passes the controller's commands to the engines, see cpp's replay.hpp."""

    def __init__(
        self,
        trace: Trace,
        controller: _core.Controller,
        engines: SimulatedCluster,
        outstanding_max: int = 0,
        progress: Progress | None = None,
        *,
        by_text: bool = False,
    ) -> None:
        """`by_text`: prompts share a prefix as far as their texts agree, if the trace has texts."""
        self._texts = trace.calls.prompt if by_text else None
        self._trace, self._controller, self._progress = trace, controller, progress
        self._engines = engines
        self._outstanding, self._outstanding_max = 0, outstanding_max
        self._ready: list[int] = []
        """A heap of calls to send; simultaneous ones are ordered by step, agent and number."""
        self._call_of: list[int] = []
        """Request -> call. Requests are numbered in the order of sending, as in a live run: it
        decides between simultaneous ones."""
        self._calls = calls = trace.calls
        self._offsets = trace.call_offsets().tolist()
        parents, bounds = calls.parents.tolist(), calls.parent_offsets.tolist()
        self._parents = [parents[a:b] for a, b in pairwise(bounds)]
        self._children: list[list[int]] = [[] for _ in self._parents]
        for call, found in enumerate(self._parents):
            for parent in found:
                self._children[parent].append(call)
        self._open_parents = [len(found) for found in self._parents]
        self._open_calls = [0] * trace.agents
        self._cluster_of: list[_Cluster | None] = [None] * trace.agents
        self._programs = AgentPrograms(engines.program_ended)
        self._finished: deque[_Cluster] = deque()
        self._floor = 0
        """The step of the slowest agent."""
        self._committed = [0] * trace.steps
        """Step -> number of agents that have committed it."""
        self.now_sim_s = 0.0
        self.controller_wall_s = 0.0
        rows = trace.steps * trace.agents
        self.sent_sim_s, self.started_sim_s, self.completed_sim_s = np.full((3, len(calls)), np.nan)
        self.instance = np.full(len(calls), -1, np.int32)
        self.dispatched_sim_s, self.committed_sim_s = np.full((2, rows), np.nan)
        self.blocked_by, self.cluster = np.full((2, rows), NO_AGENT, np.int32)
        self._just_committed: _Cluster | None = None
        """The cluster whose commit unblocks the agents that are dispatched now."""

    def run(self) -> None:
        """Run until all agents have committed their last step."""
        left = self._trace.steps * self._trace.agents
        self._dispatch(self._timed(self._controller.start))
        while left:
            while self._finished:
                left -= self._commit(self._finished.popleft())
            if left:
                self._advance()

    def _advance(self) -> None:
        """Advance to the next event of the engines."""
        while self._ready and self._outstanding < (self._outstanding_max or inf):
            self._submit(heapq.heappop(self._ready))
        self._engines.reach(self._floor, self.now_sim_s)
        self._engines.dispatch(self.now_sim_s)
        self.now_sim_s = self._engines.next_event_sim_s()
        if isinf(self.now_sim_s):
            self._engines.check_progress()
            raise RuntimeError("no call is placed, yet agents have steps to run")
        for served in self._engines.advance(self.now_sim_s):
            self._complete(served)

    def _timed(
        self, call_controller: Callable[[], list[tuple[int, tuple[int, ...]]]]
    ) -> list[tuple[int, tuple[int, ...]]]:
        began_s = time.perf_counter()
        commands = call_controller()
        self.controller_wall_s += time.perf_counter() - began_s
        return commands

    def _dispatch(self, commands: list[tuple[int, tuple[int, ...]]]) -> None:
        for step, agents in commands:
            cluster = _Cluster(step, agents, len(agents))
            for agent in agents:
                row = step * self._trace.agents + agent
                self.dispatched_sim_s[row] = self.now_sim_s
                self.cluster[row], self.blocked_by[row] = agents[0], self._awaited(step, agent)
                self._cluster_of[agent] = cluster
                calls = range(self._offsets[row], self._offsets[row + 1])
                self._open_calls[agent] = len(calls)
                for call in calls:
                    self._enqueue_if_ready(call)
                if not calls:
                    self._finish(cluster)

    def _commit(self, cluster: _Cluster) -> int:
        """Commit the cluster; return its number of agents."""
        step, agents = cluster.step, list(cluster.agents)
        after = min(step + 1, self._trace.steps - 1)  # agents stay in place in the last step
        moved = self._trace.positions[after, agents].tolist()
        self.committed_sim_s[[step * self._trace.agents + agent for agent in agents]] = (
            self.now_sim_s
        )
        self._just_committed = cluster
        self._committed[step] += len(agents)
        while self._floor < step + 1 and self._committed[self._floor] == self._trace.agents:
            self._floor += 1
        self._dispatch(self._timed(lambda: self._controller.commit(agents, moved)))
        if self._progress is not None:
            self._progress(len(agents))
        return len(agents)

    def _awaited(self, step: int, agent: int) -> int:
        """See TraceReplay::awaited in cpp's replay.hpp."""
        cause, positions = self._just_committed, self._trace.positions
        before = (step - 1) * self._trace.agents + agent
        if not step or cause is None or self.committed_sim_s[before] == self.now_sim_s:
            return NO_AGENT
        away = positions[cause.step, list(cause.agents)].astype(np.float64) - positions[step, agent]
        return cause.agents[int(np.argmin((away**2).sum(1)))]

    def _enqueue_if_ready(self, call: int) -> None:
        """Queue the call if its agent has reached its step and its parents are completed."""
        row = int(self._calls.step[call]) * self._trace.agents + int(self._calls.agent[call])
        if not self._open_parents[call] and not isnan(self.dispatched_sim_s[row]):
            heapq.heappush(self._ready, call)

    def _submit(self, call: int) -> None:
        calls, parents = self._trace.calls, self._parents[call]
        number = len(self._call_of)
        self._call_of.append(call)
        agent, step = int(calls.agent[call]), int(calls.step[call])
        last = max(parents, key=lambda parent: (self.completed_sim_s[parent], parent), default=None)
        program = self._programs.sent(number, agent, step, self.now_sim_s)
        request = QueuedRequest(
            number,
            program.name,
            self._function(call),
            int(calls.prompt_tokens[call]),
            self.now_sim_s,
            program.arrived_sim_s,
            None if last is None else self._function(last),
            step,
            prefix=self._prefix(call),
            model=calls.models[int(calls.model[call])],
        )
        self._outstanding += 1
        self.sent_sim_s[call] = self.now_sim_s
        self._engines.send(request, int(calls.output_tokens[call]))

    def _prefix(self, call: int) -> tuple[tuple[int, int], ...]:
        calls = self._trace.calls
        if self._texts is not None and (text := self._texts[call]) is not None:
            return prefix_pieces(text, int(calls.prompt_tokens[call]))
        shared, shared_tokens = int(calls.prefix_id[call]), int(calls.prefix_tokens[call])
        return ((shared, shared_tokens),) if shared >= 0 and shared_tokens else ()

    def _function(self, call: int) -> str:
        return self._trace.calls.functions[int(self._trace.calls.function[call])]

    def _complete(self, served: ServedRequest) -> None:
        call = self._call_of[served.request.id]
        self._outstanding -= 1
        self._programs.left(served.request.id)
        self.started_sim_s[call] = served.started_s
        self.completed_sim_s[call] = served.completed_s
        self.instance[call] = served.instance
        for child in self._children[call]:
            self._open_parents[child] -= 1
            self._enqueue_if_ready(child)
        agent = self._trace.calls.agent[call]
        self._open_calls[agent] -= 1
        if not self._open_calls[agent]:
            cluster = self._cluster_of[agent]
            assert cluster is not None
            self._finish(cluster)

    def _finish(self, cluster: _Cluster) -> None:
        cluster.running -= 1
        if not cluster.running:
            self._finished.append(cluster)
