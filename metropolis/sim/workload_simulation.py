"""Programs served in virtual time by a policy, a dispatcher and simulated instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.options import PoolOptions
from metropolis.trace.programs import Program, by_arrival


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A completed program."""

    program: Program
    ended_sim_s: float
    queueing_sim_s: float
    """Time from arrival to start on an engine, summed over its calls."""

    @property
    def latency_s_per_token(self) -> float:
        """The program-level token latency: response time over tokens generated (Kairos §7.1)."""
        return (self.ended_sim_s - self.program.arrival_s) / self.program.output_tokens


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """The result of a run."""

    programs: list[ServedProgram]
    requests: list[ServedRequest]
    preemptions: int


@dataclass(slots=True)
class _Running:
    program: Program
    open_parents: list[int]
    children: list[list[int]]
    left: int
    queueing_sim_s: float = 0.0


class WorkloadSimulation:
    """One simulated run; `profiles` has one for each instance of the dispatcher's fleet.

    `choice`: see `SimulatedCluster`.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        profiles: Sequence[Profile],
        policy: Policy,
        dispatcher: Dispatcher,
        options: PoolOptions,
        at_once: float = inf,
        choice: CacheChoice | None = None,
    ) -> None:
        self._cluster = SimulatedCluster(profiles, policy, dispatcher, options, at_once, choice)
        self._arriving = by_arrival(programs)[::-1]
        self._delayed: list[tuple[float, int, Program, int, str | None]] = []
        """A heap of calls before their sending: time, tie-breaker, program, index of the call, and
        the function whose answer triggered it."""
        self._numbers = count()
        self._running: dict[str, _Running] = {}
        self._calls: list[int] = []
        """Index of the call in its program, by request id."""
        self._ended: list[ServedProgram] = []
        self._served_requests: list[ServedRequest] = []

    def run(self) -> WorkloadResult:
        """Run to completion; raises PluginError on a faulty plug-in."""
        while self._arriving or self._running:
            now_sim_s = self._cluster.next_event_sim_s()
            if self._arriving:
                now_sim_s = min(now_sim_s, self._arriving[-1].arrival_s)
            if self._delayed:
                now_sim_s = min(now_sim_s, self._delayed[0][0])
            for served in self._cluster.advance(now_sim_s):
                self._complete(served)
            while self._arriving and self._arriving[-1].arrival_s <= now_sim_s:
                self._begin(self._arriving.pop())
            while self._delayed and self._delayed[0][0] <= now_sim_s:
                send_sim_s, _, program, index, upstream = heappop(self._delayed)
                self._send(program, index, send_sim_s, upstream)
            self._cluster.dispatch(now_sim_s)
            if not self._arriving and not self._delayed:
                self._cluster.check_progress()
        return WorkloadResult(self._ended, self._served_requests, self._cluster.preemptions)

    def _begin(self, program: Program) -> None:
        calls = program.calls
        children: list[list[int]] = [[] for _ in calls]
        for index, call in enumerate(calls):
            for parent in set(call.parents):
                children[parent].append(index)
        open_parents = [len(set(call.parents)) for call in calls]
        self._running[program.name] = _Running(program, open_parents, children, len(calls))
        for index, call in enumerate(calls):
            if not call.parents:
                self._send_delayed(program, index, program.arrival_s, None)

    def _send_delayed(
        self, program: Program, index: int, now_sim_s: float, upstream: str | None
    ) -> None:
        delay_s = program.calls[index].delay_s
        if delay_s:
            number = next(self._numbers)
            heappush(self._delayed, (now_sim_s + delay_s, number, program, index, upstream))
        else:
            self._send(program, index, now_sim_s, upstream)

    def _send(self, program: Program, index: int, now_sim_s: float, upstream: str | None) -> None:
        call = program.calls[index]
        request = QueuedRequest(
            len(self._calls),
            program.name,
            call.function,
            call.prompt_tokens,
            now_sim_s,
            program.arrival_s,
            upstream,
            stages_left=call.stages_left,
            prefix=call.prefix,
            model=call.model,
        )
        self._calls.append(index)
        self._cluster.send(request, call.output_tokens, call.answer_text)

    def _complete(self, served: ServedRequest) -> None:
        request, now_sim_s = served.request, served.completed_s
        index, running = self._calls[request.id], self._running[request.program]
        program = running.program
        self._served_requests.append(served)
        running.queueing_sim_s += served.started_s - request.arrived_s
        running.left -= 1
        for child in running.children[index]:
            running.open_parents[child] -= 1
            if not running.open_parents[child]:
                self._send_delayed(program, child, now_sim_s, request.function)
        if not running.left:
            del self._running[program.name]
            self._cluster.program_ended(program.name)
            self._ended.append(ServedProgram(program, now_sim_s, running.queueing_sim_s))
