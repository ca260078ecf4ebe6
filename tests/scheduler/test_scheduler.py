"""Single rules of the scheduler, without any driver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf

import pytest

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import Fcfs, StepFirst
from metropolis.scheduler.base import (
    Command,
    InstanceDownError,
    InstanceLimits,
    Place,
    Preempt,
    Reject,
    Report,
)
from metropolis.scheduler.models import ServedModels, UnservedModelError
from metropolis.scheduler.scheduler import Scheduler
from metropolis.types import MetropolisError


def request(number: int, model: str | None = None) -> QueuedRequest:
    return QueuedRequest(number, f"p{number}", "f", 10, 0.0, 0.0, model=model)


def scheduler(
    policy: Policy,
    dispatcher: type[Dispatcher] = LeastLoaded,
    instances: int = 1,
    deferral_max_s: float = inf,
    limit: int = 1,
) -> tuple[Scheduler, list[PluginError]]:
    faults: list[PluginError] = []
    fleet = Fleet.uniform(instances, 1000, 10.0)
    limits = [InstanceLimits(limit)] * instances
    made = Scheduler(
        policy, dispatcher(fleet), limits, deferral_max_s=deferral_max_s, on_fault=faults.append
    )
    for instance in range(instances):
        made.instance_up(instance, 0.0)
    return made, faults


def ids(commands: Sequence[Command], kind: type[Place | Reject]) -> list[int]:
    return [one.request.id for one in commands if isinstance(one, kind)]


class Fails(Fcfs):
    """Ranks a request `calls` times, then fails for it."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def rank(self, request: QueuedRequest) -> int:
        if request.id == 1:
            self.calls -= 1
            if self.calls < 0:
                raise ValueError("no rank")
        return 0


@pytest.mark.parametrize("calls", [1, 2])
def test_a_request_that_cannot_be_ranked_is_rejected_alone_and_leaves_its_place(calls: int) -> None:
    made, _ = scheduler(Fails(calls))
    for number in (1, 2, 3):
        made.arrived(request(number))
    commands = made.schedule(0.0)
    assert ids(commands, Reject) == [1]
    assert ids(commands, Place) == [2]
    assert (made.waiting, made.in_flight) == (1, [1])


class HoldsA(LeastLoaded):
    """Places no request for the model `a`."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        return None if request.model == "a" else super().place(request, now_s)


def test_a_dispatcher_that_holds_one_model_back_harms_no_other() -> None:
    made, faults = scheduler(Fcfs(), HoldsA, instances=2, deferral_max_s=10.0)
    made.models_changed(0, frozenset("a"), 0.0)
    made.models_changed(1, frozenset("b"), 0.0)
    for number, model in enumerate("abb"):
        made.arrived(request(number, model))
    assert ids(made.schedule(0.0), Place) == [1]
    assert made.schedule(9.9) == []
    commands = made.schedule(10.0)
    assert ids(commands, Reject) == [0]
    (rejected,) = commands
    assert isinstance(rejected, Reject)
    assert faults == [rejected.error]
    assert made.waiting == 1


def test_requests_follow_the_models_of_instances() -> None:
    made, _ = scheduler(Fcfs(), instances=2)
    made.instance_down(1, 0.0)
    for number in range(2):
        made.arrived(request(number, "a"))  # instance 1 may serve any model, as far as is known
    assert ids(made.schedule(0.0), Place) == [0]
    made.models_changed(1, frozenset("b"), 0.0)
    made.instance_up(1, 0.0)
    assert made.schedule(1.0) == []
    made.models_changed(1, frozenset("ab"), 0.0)
    (command,) = made.schedule(2.0)
    assert isinstance(command, Place)
    assert (command.request.id, command.instance) == (1, 1)
    made.models_changed(0, frozenset("b"), 0.0)
    with pytest.raises(MetropolisError, match="no instance serves the model 'c'; they serve a, b"):
        made.arrived(request(9, "c"))


def test_requests_wait_while_no_instance_serves_their_model() -> None:
    made, _ = scheduler(Fcfs())
    made.models_changed(0, frozenset("a"), 0.0)
    for number in range(3):
        made.arrived(request(number, "a"))
    assert ids(made.schedule(0.0), Place) == [0]
    made.models_changed(0, frozenset("b"), 1.0)
    made.cancelled(0, 2.0)
    made.cancelled(1, 2.0)
    assert made.schedule(2.0) == []
    assert made.waiting == 1
    made.models_changed(0, frozenset("a"), 3.0)
    assert ids(made.schedule(3.0), Place) == [2]


class Impatient(StepFirst):
    """Later requests rank first."""

    preempts = True

    def rank(self, request: QueuedRequest) -> int:
        return 100 - request.id


@pytest.mark.parametrize("policy", [Fcfs, Impatient])
def test_a_request_ends_when_no_instance_can_serve_its_model(policy: type[Policy]) -> None:
    made, _ = scheduler(policy(), instances=2)
    for number in range(4):
        made.arrived(request(number, "abba"[number]))
    assert len(ids(made.schedule(0.0), Place)) == 2
    made.models_changed(0, frozenset("a"), 1.0)
    assert ids(made.schedule(1.0), Reject) == []  # the other instance may serve b
    made.models_changed(1, frozenset("c"), 2.0)
    rejected = [one for one in made.schedule(2.0) if isinstance(one, Reject)]
    for id_ in {id_ for instance in range(2) for id_ in made.running(instance)} & {1, 2}:
        made.interrupted(id_, 0, 3.0)
    rejected += [one for one in made.schedule(3.0) if isinstance(one, Reject)]
    assert {one.request.id for one in rejected} == {1, 2}
    assert all(isinstance(one.error, UnservedModelError) for one in rejected)
    assert str(rejected[0].error) == "no instance serves the model 'b'; they serve a, c"


def test_an_instance_serves_the_adapters_of_its_models() -> None:
    models = ServedModels(Fleet.uniform(2, 1000, 10.0))
    models.set(0, frozenset(("a", "b:x")))
    assert models.serving("b:x") is models.all
    models.set(1, frozenset("b"))
    served = {name: models.serving(name) for name in ("a", "a:x", "b", "b:x", "b:y", "c", "")}
    assert served == {
        "a": {0}, "a:x": {0}, "b": {1}, "b:x": {0}, "b:y": {1}, "c": set(), "": set(),
    }  # fmt: skip
    models.set(0, None)
    assert models.serving("b") is models.serving(None) is models.all
    assert models.serving("c") == {0}


class Hashed(str):
    """A name that counts how often names are looked up."""

    hashes = 0

    def __hash__(self) -> int:
        Hashed.hashes += 1
        return super().__hash__()


def hashes(instances: int) -> int:
    """Look-ups of names when so many instances list 100 each, and one other list changes."""
    lists = [frozenset(Hashed(f"{i} {n}") for n in range(100)) for i in range(instances)]
    served = ServedModels(Fleet.uniform(instances, 1000, 1.0))
    Hashed.hashes = 0
    for instance, models in enumerate(lists):
        served.set(instance, models)
        assert served.serving(f"{instance} 7") == frozenset(range(instance, instances))
    return Hashed.hashes


def test_the_lists_of_many_instances_are_looked_up_once() -> None:
    assert 0 < hashes(16) <= 2 * hashes(8)


def test_sets_of_instances_leave_no_queue_behind() -> None:
    made, _ = scheduler(Fcfs(), instances=4)
    for number, on in enumerate(combinations(range(4), 2)):
        for instance in range(4):
            made.models_changed(instance, frozenset("ab" if instance in on else "a"), 0.0)
        asked = request(number, "b")
        made.arrived(asked)
        (place,) = made.schedule(0.0)
        assert isinstance(place, Place)
        assert place.instance in on
        made.finished(ServedRequest(asked, place.instance, 0.0, 1.0, 1))
    assert len(made._placement._queues) == 1


def test_the_dispatcher_knows_the_models_of_instances() -> None:
    made, _ = scheduler(Fcfs(), instances=2)
    made.capacity_changed(0, 500)
    made.models_changed(0, frozenset("ba"), 0.0)
    assert [each.models for each in made.dispatcher.fleet.instances] == [("a", "b"), ()]
    assert [each.capacity_tokens for each in made.dispatcher.fleet.instances] == [500, 1000]
    made.models_changed(0, None, 0.0)
    assert [each.models for each in made.dispatcher.fleet.instances] == [(), ()]


def test_a_pinned_request_ends_once() -> None:
    made, _ = scheduler(Fcfs(), instances=2)
    made.arrived(request(0), only=0)
    made.instance_down(0, 0.0)
    (command,) = made.schedule(0.0)
    assert isinstance(command, Reject)
    assert isinstance(command.error, InstanceDownError)
    with pytest.raises(InstanceDownError, match="instance 0 does not answer"):
        made.arrived(request(1), only=0)
    made.instance_up(0, 0.0)
    made.arrived(request(2), only=0)
    made.instance_down(0, 1.0)
    made.cancelled(2, 1.0)
    assert made.schedule(1.0) == []


def test_what_waits_at_an_instance_that_goes_down_is_placed_elsewhere() -> None:
    made, _ = scheduler(Impatient(), instances=2)
    made.arrived(request(5))
    made.arrived(request(6))
    assert len(ids(made.schedule(0.0), Place)) == 2
    made.arrived(request(1))
    made.arrived(request(2))
    assert made.schedule(0.0) == []
    made.instance_down(0, 1.0)
    assert made.schedule(1.0) == []
    first = request(5) if made.running(1) == [5] else request(6)
    made.finished(ServedRequest(first, 1, 0.0, 2.0, 1))
    assert ids(made.schedule(2.0), Place) == [2]


def test_an_instance_that_returns_gets_requests_that_wait_at_others() -> None:
    made, _ = scheduler(Impatient(), instances=2)
    made.instance_down(1, 0.0)
    for number in (9, 8):
        made.arrived(request(number))
    assert ids(made.schedule(0.0), Place) == [9]
    made.instance_up(1, 1.0)
    (command,) = made.schedule(1.0)
    assert isinstance(command, Place)
    assert (command.request.id, command.instance) == (8, 1)
    made.instance_up(1, 2.0)
    assert made.schedule(2.0) == []


def test_requests_that_wait_at_an_instance_follow_its_models() -> None:
    made, _ = scheduler(Impatient(), instances=2)
    made.models_changed(0, frozenset("a"), 0.0)
    made.models_changed(1, frozenset("b"), 0.0)
    for number in (5, 9):
        made.arrived(request(number, "a"))
    assert ids(made.schedule(0.0), Place) == [9]
    made.models_changed(1, frozenset("ab"), 1.0)
    (command,) = made.schedule(1.0)
    assert isinstance(command, Place)
    assert (command.request.id, command.instance) == (5, 1)


def test_a_preempted_request_does_not_return_to_an_instance_without_its_model() -> None:
    made, _ = scheduler(Impatient(), instances=2)
    made.instance_down(1, 0.0)
    made.arrived(request(5, "a"))
    made.schedule(0.0)
    made.arrived(request(9, "a"))
    assert any(isinstance(one, Preempt) for one in made.schedule(1.0))
    made.models_changed(0, frozenset("b"), 1.0)
    made.interrupted(5, 0, 2.0)
    assert made.schedule(2.0) == []
    made.instance_up(1, 3.0)
    assert {one.instance for one in made.schedule(3.0) if isinstance(one, Place)} == {1}


@pytest.mark.parametrize("instances", [2, 16])
def test_all_instances_report_in_one_round(instances: int) -> None:
    limits = [InstanceLimits(1, always_preemptible=False)] * instances
    made = Scheduler(Impatient(), LeastLoaded(Fleet.uniform(instances, 1000, 10.0)), limits)
    for instance in range(instances):
        made.instance_up(instance, 0.0)
        made.arrived(request(2 * instance))
        assert len(ids(made.schedule(0.0), Place)) == 1
    for instance in range(instances):
        made.arrived(request(2 * instance + 1))
    asked = [each for each in made.schedule(0.0) if isinstance(each, Report)]
    assert [each.instance for each in asked] == [*range(instances)]
    for each in asked:
        made.progressed(each.instance, 0, made.running(each.instance))
    assert made.schedule(0.0) == []


class CannotRank(Impatient):
    """Fails for one request, once it runs."""

    failing = -1

    def rank(self, request: QueuedRequest) -> int:
        if request.id == self.failing:
            raise ZeroDivisionError
        return super().rank(request)


def test_a_running_request_that_cannot_be_ranked_stays_and_harms_no_other() -> None:
    made, faults = scheduler(CannotRank(), limit=2)
    for number in (5, 6):
        made.arrived(request(number))
    made.schedule(0.0)
    CannotRank.failing = 5
    try:
        made.arrived(request(9))
        commands = made.schedule(1.0)
    finally:
        CannotRank.failing = -1
    assert [one.request.id for one in commands if isinstance(one, Preempt)] == [6]
    assert ids(commands, Place) == [9]
    assert [str(one).split(":")[0] for one in faults] == ["the policy CannotRank failed in rank"]


def test_a_method_that_becomes_a_failing_property_ends_what_waits() -> None:
    class Broken(Fcfs):
        @property
        def passed(self) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    made, faults = scheduler(Broken())
    made.arrived(request(1))
    (command,) = made.schedule(0.0)
    assert isinstance(command, Reject)
    assert [str(one).split(":")[0] for one in faults] == ["the policy Broken failed in passed"]
