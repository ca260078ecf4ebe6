"""The conformance suite: our plug-ins pass it, planted faults do not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from metropolis.dispatch.base import Dispatcher, Fleet
from metropolis.dispatch.check import BrokenPluginError, check_dispatcher, check_policy
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.faults import PluginError
from metropolis.policy.fixed import StepFirst
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.types import MetropolisError


@pytest.mark.parametrize("name", names_of(POLICIES))
def test_our_policies_keep_the_interface(name: str) -> None:
    check_policy(named(POLICIES, name))


@pytest.mark.parametrize("name", names_of(DISPATCHERS))
def test_our_dispatchers_keep_the_interface(name: str) -> None:
    check_dispatcher(named(DISPATCHERS, name))


class Negative(Policy):
    def rank(self, request: QueuedRequest) -> int:
        return -1


class Floating(Policy):
    def rank(self, request: QueuedRequest) -> int:
        return 0.5  # type: ignore[return-value]


class Asynchronous(Policy):
    async def rank(self, request: QueuedRequest) -> int:  # type: ignore[override]
        return 0


class Restless(Policy):
    def __init__(self) -> None:
        self._count = count()

    def rank(self, request: QueuedRequest) -> int:
        return next(self._count)


class Backwards(Policy):
    def rank(self, request: QueuedRequest) -> int:
        return 0

    def arrived(self, request: QueuedRequest) -> None:
        self.version -= 1


class Overdue(Policy):
    due_s = 0.0

    def rank(self, request: QueuedRequest) -> int:
        return 0


_MADE = count()


class Moody(Policy):
    def __init__(self) -> None:
        self._mood = next(_MADE)

    def rank(self, request: QueuedRequest) -> int:
        return self._mood


class Silent(Policy):
    _now_s = 0.0

    def rank(self, request: QueuedRequest) -> int:
        return int(self._now_s)

    def passed(self, now_s: float) -> None:
        self._now_s = now_s


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Negative, "must lie between"),
        (Floating, "must be an int, and one is 0.5"),
        (Asynchronous, "must be an int, and one is <coroutine"),
        (Restless, "function of the request and the version"),
        (Backwards, "version must not fall"),
        (Moody, "must return the same ranks"),
        (Overdue, "due_s must be in the future"),
        (Silent, "while it runs, too"),
    ],
)
def test_a_planted_fault_of_a_policy_is_found(policy: type[Policy], rule: str) -> None:
    with pytest.raises(BrokenPluginError, match=rule):
        check_policy(policy)


class Elsewhere(Dispatcher):
    def place(self, request: QueuedRequest, now_s: float) -> int:
        return len(self.fleet)


class Never(Dispatcher):
    def place(self, request: QueuedRequest, now_s: float) -> None:
        return None


class Anywhere(Dispatcher):
    def place(self, request: QueuedRequest, now_s: float) -> int:
        return request.id % len(self.fleet)


class Another(Dispatcher):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__(Fleet.uniform(1, 1, 1.0))

    def place(self, request: QueuedRequest, now_s: float) -> int:
        return 0


class Attached(LeastLoaded):
    """Believes that an instance is lost but once."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._caches = dict.fromkeys(range(len(fleet)), 0)

    def lost(self, instance: int) -> None:
        del self._caches[instance]


class Ungrateful(LeastLoaded):
    """Believes that every program has been asked of instance 0."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._programs: set[str] = set()

    def place(self, request: QueuedRequest, now_s: float) -> int | None:
        placed = super().place(request, now_s)
        if placed == 0:
            self._programs.add(request.program)
        return placed

    def program_ended(self, program: str) -> None:
        self._programs.remove(program)


@pytest.mark.parametrize("dispatcher", [Attached, Ungrateful])
def test_dispatchers_are_told_of_lost_instances_and_ended_programs(
    dispatcher: type[Dispatcher],
) -> None:
    with pytest.raises(PluginError, match="KeyError"):
        check_dispatcher(dispatcher)


@pytest.mark.parametrize(
    ("dispatcher", "rule"),
    [
        (Elsewhere, "is not an instance"),
        (Never, "must not wait while no instance is busy"),
        (Anywhere, "is closed"),
        (Another, "fleet must be"),
    ],
)
def test_a_planted_fault_of_a_dispatcher_is_found(dispatcher: type[Dispatcher], rule: str) -> None:
    with pytest.raises(BrokenPluginError, match=rule):
        check_dispatcher(dispatcher)


@pytest.mark.parametrize("check", [check_policy, check_dispatcher])
@pytest.mark.parametrize("given", ["own.py:Mine", LeastLoaded(Fleet.uniform(1, 100, 1.0))])
def test_what_makes_no_plugin_is_refused(check: Callable[[Any], None], given: object) -> None:
    with pytest.raises(MetropolisError, match="is not callable; give the class"):
        check(given)


class Greedy(StepFirst):
    def __init__(self, weights: int) -> None: ...


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Policy, "the policy cannot be made without arguments: TypeError: .*abstract"),
        (Greedy, "the policy cannot be made without arguments: TypeError: .*'weights'"),
        (lambda: 1 // 0, r"without arguments: .*test_check\.py:\d+: ZeroDivisionError: .*; fix it"),
        (lambda: None, "the policy is None; it should be a metropolis.policy.base.Policy"),
    ],
)
def test_a_policy_that_cannot_be_made_is_told_in_a_sentence(
    make: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        check_policy(make)


def test_a_violation_is_an_error_for_users() -> None:
    with pytest.raises(MetropolisError, match="a rank must lie between"):
        check_policy(Negative)


NAMES = {
    "policy": ["version", "running_version", "rank_bits", "due_s", "rank", "reranked", "arrived",
               "started", "preempted", "promoted", "passed", "completed", "cancelled",
               "program_ended", "function_ended"],
    "dispatcher": ["fleet", "place", "completed", "cancelled", "program_ended", "lost",
                   "preempted"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names]
)
def test_a_property_that_fails_is_told_in_one_sentence(kind: str, name: str) -> None:
    """This includes a property in place of a method."""

    def get(_: object) -> object:
        raise ZeroDivisionError

    def ignore(_: object, value: object) -> None: ...

    base: type[Any] = StepFirst if kind == "policy" else LeastLoaded
    broken = type("Broken", (base,), {name: property(get, ignore)})
    check: Callable[[Any], None] = check_policy if kind == "policy" else check_dispatcher
    sentence = f"^the {kind} Broken failed in {name}: .*:[0-9]+: ZeroDivisionError"
    with pytest.raises(PluginError, match=sentence):
        check(broken)
