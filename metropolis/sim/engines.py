"""Simulated instances driven by the scheduler, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isinf

from metropolis._core import Profile
from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import read
from metropolis.scheduler.base import InstanceLimits, Place, Preempt, Reject, Report, Reprioritize
from metropolis.scheduler.scheduler import Scheduler
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet_changes import Down, FleetChanges, Off, Up
from metropolis.sim.fleet_schedule import FleetSchedule
from metropolis.sim.instance import Aborted, SimulatedInstance, SimulatedRequest, Start
from metropolis.sim.options import PoolOptions


class SimulatedCluster:
    """The instances of the dispatcher's fleet, by their profiles; the caller advances the time.

    `at_once`: the maximum number of requests that an instance has at a time. `choice` says which
    cache a prefill starts from; profiles and dispatcher are then those of `choice.fleet`, and its
    plug-in decides on `options.prefix_reuse`. `schedule`: when which of the instances serve; by
    default all do. Methods raise PluginError on a faulty plug-in.
    """

    def __init__(
        self,
        profiles: Sequence[Profile],
        policy: Policy,
        dispatcher: Dispatcher,
        options: PoolOptions,
        at_once: float = inf,
        choice: CacheChoice | None = None,
        schedule: FleetSchedule | None = None,
    ) -> None:
        self._choice = choice
        self._changes = None if schedule is None else FleetChanges(schedule)
        if choice:
            options = replace(options, prefix_reuse=choice.own_prefix)
        self._instances = [
            SimulatedInstance(index, profile, options) for index, profile in enumerate(profiles)
        ]
        limits = [
            InstanceLimits(
                min(at_once, each.max_sequences) if read(policy, "preempts") else at_once,
                each.kv_capacity_tokens,
                reprioritizes=True,
            )
            for each in profiles
        ]
        self._scheduler = Scheduler(policy, dispatcher, limits)
        for index in range(len(profiles)) if schedule is None else schedule.phases[0].gpus:
            self._scheduler.instance_up(index, 0.0)
        self._engine_preemptions = [0] * len(self._instances)
        self._policy_preemptions = 0
        self._requests: dict[int, SimulatedRequest] = {}
        """Uncompleted requests by id."""

    @property
    def preemptions(self) -> int:
        """Preemptions so far on all instances: by engines (lack of memory) and by the policy."""
        return sum(self._engine_preemptions) + self._policy_preemptions

    def busy_sim_s(self) -> list[float]:
        """Busy time of each instance."""
        return [instance.busy_sim_s for instance in self._instances]

    def send(
        self, request: QueuedRequest, output_tokens: int, answer_text: int | None = None
    ) -> None:
        """Enqueue `request`, which waits from its arrival until `dispatch` places it.

        `answer_text`: the id of its answer's text, if later prompts may contain it.
        """
        self._requests[request.id] = SimulatedRequest(request, output_tokens, answer_text)
        self._scheduler.arrived(request)

    def promote(self, request_id: int, now_sim_s: float) -> None:
        """A speculative request is needed; one that has not begun gets another place."""
        self._scheduler.promoted(request_id, now_sim_s)
        for instance in self._instances:
            instance.withdraw(request_id, now_sim_s)

    def cancel(self, request_id: int, now_sim_s: float) -> None:
        """Abort a request that has not completed."""
        del self._requests[request_id]
        self._scheduler.cancelled(request_id, now_sim_s)
        for instance in self._instances:
            instance.cancel(request_id, now_sim_s)

    def program_ended(self, program: str) -> None:
        """`program` will send no more requests."""
        self._scheduler.program_ended(program)

    def next_event_sim_s(self) -> float:
        """The earliest next completion, preemption or loaded model; infinite when none comes."""
        events = (instance.next_event_sim_s for instance in self._instances)
        loaded_s = inf if self._changes is None else self._changes.due_s
        return min(self._scheduler.due_s, loaded_s, *events)

    def check_progress(self) -> None:
        """Raise PluginError if requests wait although no instance is busy."""
        if self._scheduler.waiting and isinf(self.next_event_sim_s()):
            raise self._scheduler.endless_deferral()

    def advance(self, now_sim_s: float) -> list[ServedRequest]:
        """Advance to `now_sim_s`; returns the requests completed by then by (time, id)."""
        due = [each for each in self._instances if each.next_event_sim_s <= now_sim_s]
        gone = [one for instance in due for one in instance.advance(now_sim_s)]
        served: list[ServedRequest] = []
        for one in sorted(gone, key=_order):
            if isinstance(one, Aborted):
                self._scheduler.interrupted(one.id, one.output_tokens, one.left_sim_s)
            else:
                del self._requests[one.request.id]
                self._scheduler.finished(one)
                served.append(one)
        for instance in due:
            if instance.preemptions > self._engine_preemptions[instance.index]:
                self._engine_preemptions[instance.index] = instance.preemptions
                self._scheduler.instance_preempted(instance.index, now_sim_s)
        return served

    def reach(self, floor: int, now_sim_s: float) -> None:
        """Change the fleet as its schedule says when the slowest agent is at step `floor`.

        Requests that wait in the engine of an instance that drains, or beside one that comes up,
        are placed again.
        """
        if self._changes is None:
            return
        while changes := self._changes.update(floor, self._scheduler.in_flight, now_sim_s):
            for change in changes:
                index = change.instance
                match change:
                    case Up():
                        self._scheduler.instance_up(index, now_sim_s)
                        for other in self._scheduler.models.others(index):
                            self._withdraw_waiting(other, now_sim_s)
                    case Down():
                        self._scheduler.instance_down(index, now_sim_s)
                        self._withdraw_waiting(index, now_sim_s)
                    case Off():
                        self._scheduler.instance_lost(index)
                        self._instances[index].restart()

    def _withdraw_waiting(self, index: int, now_sim_s: float) -> None:
        for request_id in self._scheduler.running(index):
            self._instances[index].withdraw(request_id, now_sim_s)

    def dispatch(self, now_sim_s: float) -> None:
        """Carry out the scheduler's commands."""
        is_repeated = True
        while is_repeated:
            is_repeated = False
            for command in self._scheduler.schedule(now_sim_s):
                match command:
                    case Place(request, index, priority):
                        simulated = self._requests[request.id]
                        before, simulated.instance = simulated.instance, index
                        if before is not None and before != index:  # may keep its KV on the host
                            self._instances[before].cancel(request.id, now_sim_s)
                        start = self._start(simulated, index, now_sim_s)
                        self._instances[index].submit(simulated, priority, now_sim_s, start)
                    case Preempt(request, index):
                        self._policy_preemptions += 1
                        self._instances[index].abort(request.id, now_sim_s)
                    case Reprioritize(index, priorities):
                        self._instances[index].reprioritize(priorities, now_sim_s)
                    case Reject(_, error):
                        raise error
                    case Report(index):
                        self._instances[index].pass_time(now_sim_s)
                        self._scheduler.progressed(index, self._instances[index].held_tokens)
                        is_repeated = True

    def _start(self, request: SimulatedRequest, index: int, now_sim_s: float) -> Start:
        """What `request` starts from; once it has generated, it is its own KV alone, if kept.

        What is copied from another instance is what that holds now, even if it evicts it during
        the transfer.
        """
        prefix = request.request.prefix
        if self._choice is None or request.generated_tokens:
            return Start()
        for instance in self._instances:
            instance.pass_time(now_sim_s)
        held = [instance.cached_tokens(prefix) for instance in self._instances]
        return self._choice.start(request.request, index, held, now_sim_s)


def _order(one: ServedRequest | Aborted) -> tuple[float, int]:
    if isinstance(one, Aborted):
        return one.left_sim_s, one.id
    return one.completed_s, one.request.id
