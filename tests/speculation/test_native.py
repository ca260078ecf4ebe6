"""The native speculation returns the commands of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.controller.native import native_controller
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.rules.rules import Rule
from metropolis.speculation.base import (
    Command,
    Drop,
    Event,
    Failed,
    Lost,
    Observed,
    Proceed,
    Proceeded,
    Reads,
    Resolve,
    Resolved,
    Speculation,
    Value,
)
from metropolis.speculation.native import NativeSpeculation
from metropolis.speculation.reference import ReferenceSpeculation
from metropolis.types import AgentId, MetropolisError, Step
from tests.speculation.executions import OptimisticRun, lockstep, rule_of
from tests.speculation.worlds import World


class DifferentError(Exception):
    """The two speculations differ."""


def same(expected: Any, found: Any) -> Any:
    """Both, if they are equal."""
    if expected != found:
        raise DifferentError(f"{expected} and {found}")
    return expected


class Both:
    """The reference and the native speculation side by side."""

    def __init__(
        self,
        world: World,
        native: type[NativeSpeculation],
        controller: Any,
        metric: Any,
        *rest: Any,
    ) -> None:
        self._reference = ReferenceSpeculation(controller, metric, *rest)
        starts = [world.entities[name].position for name in world.bodies]
        self._native = native(
            native_controller(rule_of(world), metric, world.max_velocity, starts, world.steps),
            metric,
            *rest,
            perception_radius=world.perception_radius,
            numbers_kept=world.seed % 40,
        )

    def start(self) -> list[Command]:
        return self._equal(self._reference.start(), self._native.start())

    def handle(self, events: Sequence[Event]) -> list[Command]:
        return self._equal(self._reference.handle(events), self._native.handle(events))

    def candidates(self) -> list[AgentId]:
        return same(self._reference.candidates(), self._native.candidates())

    def speculate(self, agents: Sequence[AgentId]) -> list[Command]:
        return self._equal(self._reference.speculate(agents), self._native.speculate(agents))

    @property
    def floor(self) -> Step:
        return same(self._reference.floor, self._native.floor)

    @property
    def finished(self) -> bool:
        return same(self._reference.finished, self._native.finished)

    def validate(self) -> None:
        self._reference.validate()
        self._native.validate()

    def _equal(self, expected: list[Command], commands: list[Command]) -> list[Command]:
        same(expected, commands)
        assert self.floor >= 0
        return expected


def compare(
    seed: int, risk: float, faults: float, native: type[NativeSpeculation] = NativeSpeculation
) -> None:
    world = World(seed)
    make: Any = partial(Both, world, native)
    history = OptimisticRun(world, seed, make=make, risk=risk, faults=faults).run()
    assert history == lockstep(world)[0], world


@given(
    st.integers(0, 10**9), st.sampled_from([0.0, 0.3, 0.9, 1.0]), st.sampled_from([0.0, 0.05, 0.3])
)
def test_native_commands_equal_those_of_the_reference(
    seed: int, risk: float, faults: float
) -> None:
    compare(seed, risk, faults)


@pytest.mark.campaign
def test_native_commands_equal_those_of_the_reference_in_many_worlds() -> None:
    for seed in range(8_000):
        compare(seed, [0.9, 0.3, 1][seed % 3], [0.05, 0.3, 0][seed // 3 % 3])


STARTS = [(100.0 * agent, 0.0) for agent in range(4)]


def overwritten(speculation: Speculation, first: AgentId, second: AgentId) -> list[Command]:
    """The drops of the results of two agents, whose writes a third agent repeats.

    They are one step ahead of agent 3, and end in the given order.
    """

    def end(command: Command, **writes: Value) -> list[Command]:
        if isinstance(command, Proceed):
            return speculation.handle([Observed(command.id, ()), Proceeded(command.id)])
        assert isinstance(command, Resolve)
        minds = dict.fromkeys(command.agents, 0)
        return speculation.handle([Resolved(command.id, (), writes, (), minds, {})])

    def resolve(proceeds: list[Command]) -> dict[AgentId, Command]:
        found: dict[AgentId, Command] = {}
        for agent in (first, second, 2):
            [one] = [one for one in proceeds if isinstance(one, Proceed) and one.agent == agent]
            [found[agent]] = [one for one in end(one) if isinstance(one, Resolve)]
        return found

    for command in resolve(speculation.start()).values():
        end(command)
    ahead = resolve(speculation.speculate([0, 1, 2]))
    end(ahead[first], x=Value((0, 0), 1))
    end(ahead[second], y=Value((0, 0), 1))
    return end(ahead[2], x=Value((0, 0), 2), y=Value((0, 0), 2))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_drops_are_in_the_order_of_agents(first: AgentId, second: AgentId) -> None:
    rule, bodies = Rule(2, 1000), ["a", "b", "c", "d"]
    rest = (2.0, bodies, dict(zip(bodies, map(Value, STARTS, [0] * 4), strict=True)), [0] * 4, 9)
    reference = ReferenceSpeculation(
        ReferenceController(rule, CHEBYSHEV, 1, STARTS, 9), CHEBYSHEV, *rest
    )
    controller = native_controller(rule, CHEBYSHEV, 1, STARTS, 9)
    native = NativeSpeculation(controller, CHEBYSHEV, *rest, perception_radius=4)
    expected = overwritten(reference, first, second)
    assert [type(one) for one in expected][:2] == [Drop, Drop]
    assert overwritten(native, first, second) == expected


def test_a_crowd_that_ends_one_by_one() -> None:
    """All stand on one tile, and every end makes a larger cluster."""
    count, here = 40, (0.0, 0.0)
    bodies = [f"a{agent}" for agent in range(count)]
    rest = (2.0, bodies, {body: Value(here, 0) for body in bodies}, [0] * count, 3)
    starts = [here] * count
    reference = ReferenceSpeculation(
        ReferenceController(Rule(2, 6), CHEBYSHEV, 1, starts, 3), CHEBYSHEV, *rest
    )
    controller = native_controller(Rule(2, 6), CHEBYSHEV, 1, starts, 3)
    native = NativeSpeculation(controller, CHEBYSHEV, *rest, perception_radius=4)
    started = native.start()
    assert started == reference.start()
    for command in started:
        events = [Observed(command.id, ()), Proceeded(command.id)]
        commands = native.handle(events)
        assert commands == reference.handle(events)
        assert isinstance(commands[-1], Resolve)
    assert len(commands[-1].agents) == count
    native.validate()


def test_names_and_digests_that_are_not_in_use_are_forgotten() -> None:
    counts = []

    class Counting(NativeSpeculation):
        def _forget(self) -> None:
            super()._forget()
            counts.append(len(self._digests))

    world = World(81)
    world.steps = 40
    make: Any = partial(Both, world, Counting)
    run = OptimisticRun(world, 81, make=make, validates=False)
    run.run()
    assert counts
    assert max(counts) < 0.5 * len({mind for _, _, _, mind in run.history.values()})


class _Blind(NativeSpeculation):
    """Does not hear of searches for entities."""

    def _reads(self, reads: Reads) -> list[Any]:
        return super()._reads([one for one in reads if one[0].kind != "entities"])


class _Mindless(NativeSpeculation):
    """Takes all minds for equal."""

    def _apply(self, event: Event) -> None:
        if isinstance(event, Resolved):
            event = replace(event, minds=dict.fromkeys(event.minds, 0))
        super()._apply(event)


class _Motionless(NativeSpeculation):
    """Does not hear of writes."""

    def _apply(self, event: Event) -> None:
        super()._apply(replace(event, writes={}) if isinstance(event, Resolved) else event)


class _Aimless(NativeSpeculation):
    """Does not hear of forecasts."""

    def _apply(self, event: Event) -> None:
        super()._apply(replace(event, forecasts={}) if isinstance(event, Resolved) else event)


class _Silent(NativeSpeculation):
    """Does not hear of events."""

    def _apply(self, event: Event) -> None:
        super()._apply(replace(event, events=()) if isinstance(event, Resolved) else event)


class _Optimist(NativeSpeculation):
    """Takes failed executions for lost ones."""

    def _apply(self, event: Event) -> None:
        super()._apply(Lost(event.id) if isinstance(event, Failed) else event)


class _Forgetful(NativeSpeculation):
    """Forgets digests that are in use."""

    def _forget(self) -> None:
        super()._forget()
        self._digests.keep([])


@pytest.mark.parametrize(
    "fault", [_Blind, _Mindless, _Motionless, _Aimless, _Silent, _Optimist, _Forgetful]
)
def test_a_difference_is_found(fault: type[NativeSpeculation]) -> None:
    for seed in range(200):
        try:
            compare(seed, 0.9, 0.3, fault)
        except DifferentError:
            return
        except MetropolisError:  # of the native speculation alone, before it gives a command
            continue
    pytest.fail("the commands are equal")
