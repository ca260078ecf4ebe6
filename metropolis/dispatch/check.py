"""The conformance suite for policies and dispatchers, for authors of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from metropolis.dispatch.base import Dispatcher, Fleet, InstanceSpec
from metropolis.names import cut
from metropolis.policy.base import RANK_BITS, Policy, QueuedRequest, ServedRequest
from metropolis.policy.faults import call, due_s_of, read, reranked_by, version_of, versions_of
from metropolis.types import MetropolisError
from metropolis.world.user_errors import describe_error

PluginT = TypeVar("PluginT")
PROGRAMS = 60
FLEET = Fleet((InstanceSpec(4000, 20.0), InstanceSpec(2500, 40.0), InstanceSpec(9000, 10.0)))


class BrokenPluginError(MetropolisError):
    """A plug-in that violates its interface."""


def check_policy(make: Callable[[], Policy], seed: int = 0) -> None:
    """Raise BrokenPluginError if the policies that `make` returns violate the interface.

    Requests of random chains, with `stages_left` set, are preempted once and then completed or
    cancelled, some promoted before; all requests are ranked in between and at the end. Raises
    PluginError if a method or property fails, and MetropolisError as `made_by`.
    """
    policy, twin = made_by(make, Policy), made_by(make, Policy)
    for each in (policy, twin):
        bits = read(each, "rank_bits")
        is_width = type(bits) is int and 0 < bits <= RANK_BITS
        _require(is_width, f"rank_bits must be an int from 1 to {RANK_BITS}")
    waiting: list[QueuedRequest] = []
    for served, is_last in _served_requests(seed):
        waiting.append(served.request)
        for each in (policy, twin):
            version = version_of(each, "version")
            _live(each, served)
            if is_last:
                call(Policy.program_ended, each, served.request.program)
                if served.request.id % 8 == 0:
                    call(Policy.function_ended, each, served.request.function)
            _require(version_of(each, "version") >= version, "version must not fall")
        version = version_of(policy, "version")
        ranks = [_rank(policy, request) for request in waiting]
        again = [_rank(policy, request) for request in waiting]
        same = version == version_of(policy, "version") and ranks == again
        _require(same, "rank must be a function of the request and the version")
        theirs = [_rank(twin, request) for request in waiting]
        _require(ranks == theirs, "two policies with the same events must return the same ranks")


def check_dispatcher(make: Callable[[Fleet], Dispatcher], seed: int = 0) -> None:
    """Raise BrokenPluginError if the dispatchers that `make` returns violate the interface.

    Raises PluginError if a method or property fails, and MetropolisError as `made_by`.
    """
    dispatcher = made_by(make, Dispatcher, FLEET)
    _require(read(dispatcher, "fleet") == FLEET, "fleet must be the one it was made for")
    draw, now_s = Random(f"{seed} dispatch"), 0.0
    placed: list[tuple[QueuedRequest, int, float]] = []
    for served, is_last in _served_requests(seed):
        request = served.request
        now_s += draw.expovariate(1.0)
        closed = draw.sample(range(len(FLEET)), draw.randrange(len(FLEET)))
        dispatcher.closed = set(closed)
        if closed and draw.random() < 0.1:
            call(Dispatcher.lost, dispatcher, closed[0])
        while (instance := call(Dispatcher.place, dispatcher, request, now_s)) is None:
            _require(bool(placed), "a request must not wait while no instance is busy")
            now_s += draw.expovariate(1.0)
            _answer(dispatcher, placed.pop(draw.randrange(len(placed))), now_s)
        _require(instance in range(len(FLEET)), f"{instance!r} is not an instance")
        _require(instance not in read(dispatcher, "closed"), f"instance {instance} is closed")
        placed.append((request, instance, now_s))
        if draw.random() < 0.1:
            call(Dispatcher.preempted, dispatcher, instance, now_s)
        if is_last:
            _end(dispatcher, request.program, placed, now_s)
    while placed:
        now_s += 1.0
        _answer(dispatcher, placed.pop(draw.randrange(len(placed))), now_s)


def made_by(make: Callable[..., PluginT], base: type[Any], *args: object) -> PluginT:
    """The plug-in that `make` returns for `args`.

    Raises MetropolisError if `make` cannot be called or fails, or if the plug-in is no `base`.
    """
    if not callable(make):
        raise MetropolisError(
            f"{cut(make)} is not callable; give the class of the {base.kind}, or a function that "
            "makes one, not its name and not an instance"
        )
    try:
        plugin = make(*args)
    except MetropolisError:
        raise
    except (Exception, SystemExit) as error:
        called = "with a fleet" if args else "without arguments"
        raise MetropolisError(
            f"the {base.kind} cannot be made {called}: {describe_error(error, None)}"
        ) from error
    if not isinstance(plugin, base):
        right = f"{base.__module__}.{base.__name__}"
        raise MetropolisError(f"the {base.kind} is {cut(plugin)}; it should be a {right}")
    return plugin


def _rank(policy: Policy, request: QueuedRequest) -> int:
    rank: int = call(Policy.rank, policy, request)
    _require(type(rank) is int, f"a rank must be an int, and one is {cut(rank)}")
    bits = read(policy, "rank_bits")
    fits = 0 <= rank < 1 << bits
    _require(fits, f"a rank must lie between 0 and 2 ** {bits} - 1, and one is {rank}")
    return rank


def _live(policy: Policy, served: ServedRequest) -> None:
    """Start a request, preempt it half way and resume it; complete nine in ten, cancel the rest.

    One in three arrives as a speculative one and is promoted.
    """
    request, middle_s = served.request, (served.started_s + served.completed_s) / 2
    is_promoted = request.id % 3 == 0
    call(Policy.arrived, policy, replace(request, speculative=is_promoted))
    if is_promoted:
        call(Policy.promoted, policy, request)
    call(Policy.started, policy, request, served.started_s)
    versions, rank = versions_of(policy), _rank(policy, request)
    call(Policy.passed, policy, middle_s)
    is_function = versions != versions_of(policy) or rank == _rank(policy, request)
    _require(
        is_function, "rank must be a function of the request and the versions while it runs, too"
    )
    ids = reranked_by(policy, versions)
    is_named = ids is None or request.id in ids or rank == _rank(policy, request)
    _require(is_named, "reranked must name the requests whose ranks have changed")
    _require(due_s_of(policy) > middle_s, "due_s must be in the future after passed")
    call(Policy.preempted, policy, request, middle_s)
    call(Policy.started, policy, request, middle_s)
    if request.id % 10:
        call(Policy.completed, policy, served)
    else:
        call(Policy.cancelled, policy, request)


def _answer(dispatcher: Dispatcher, one: tuple[QueuedRequest, int, float], now_s: float) -> None:
    """Complete nine in ten requests; cancel the rest."""
    request, instance, started_s = one
    if request.id % 10:
        call(
            Dispatcher.completed, dispatcher, ServedRequest(request, instance, started_s, now_s, 10)
        )
    else:
        call(Dispatcher.cancelled, dispatcher, request, instance, now_s)


def _end(
    dispatcher: Dispatcher,
    program: str,
    placed: list[tuple[QueuedRequest, int, float]],
    now_s: float,
) -> None:
    """End the program and all its placed requests."""
    for one in [one for one in placed if one[0].program == program]:
        placed.remove(one)
        _answer(dispatcher, one, now_s)
    call(Dispatcher.program_ended, dispatcher, program)


def _served_requests(seed: int) -> Iterator[tuple[ServedRequest, bool]]:
    """Executions of chains of up to four requests, each with whether it is its chain's last."""
    draw, number = Random(seed), 0
    for program in range(PROGRAMS):
        began_s = now_s = 10.0 * program
        length = draw.randint(1, 4)
        for stage in range(length):
            request = QueuedRequest(
                number,
                f"program {program}",
                f"function {draw.randrange(3)} {stage}",
                draw.randint(1, 2000),
                now_s,
                began_s,
                upstream=None if stage == 0 else f"function {stage - 1}",
                step=draw.randrange(100),
                stages_left=length - stage,
            )
            number += 1
            completed_s = now_s + draw.expovariate(0.2)
            yield (
                ServedRequest(request, 0, now_s, completed_s, draw.randint(1, 500)),
                (stage == length - 1),
            )
            now_s = completed_s


def _require(is_kept: bool, rule: str) -> None:
    if not is_kept:
        raise BrokenPluginError(rule)
