"""What does not fit gets one sentence from both speculations, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from metropolis.controller.native import native_controller
from metropolis.controller.reference import ReferenceController
from metropolis.rules.metrics import CHEBYSHEV
from metropolis.rules.rules import versioned
from metropolis.speculation.base import (
    Command,
    Drop,
    Failed,
    Lost,
    Observed,
    Proceed,
    Proceeded,
    Question,
    Resolve,
    Resolved,
    Speculation,
    Value,
)
from metropolis.speculation.native import NativeSpeculation
from metropolis.speculation.reference import ReferenceSpeculation
from metropolis.types import MetropolisError

BODIES = ["a", "b"]
ENTITIES = {"a": Value((0, 0), 0), "b": Value((3, 0), 0)}
STEPS = 2


def reference(steps: Sequence[int] = ()) -> Speculation:
    starts = [ENTITIES[name].position for name in BODIES]
    controller = ReferenceController(versioned(2, 1), CHEBYSHEV, 1, starts, STEPS, steps=steps)
    return ReferenceSpeculation(controller, CHEBYSHEV, 2, BODIES, ENTITIES, [0, 0], STEPS)


def native(steps: Sequence[int] = (), **changes: Any) -> Speculation:
    starts = [ENTITIES[name].position for name in BODIES]
    controller = native_controller(versioned(2, 1), CHEBYSHEV, 1, starts, STEPS, steps=steps)
    arguments: dict[str, Any] = {
        "cluster_radius": 2, "bodies": BODIES, "entities": ENTITIES, "minds": [0, 0],
        "target_step": STEPS, "perception_radius": 2,
    }  # fmt: skip
    return NativeSpeculation(controller, CHEBYSHEV, **(arguments | changes))


BOTH = pytest.mark.parametrize("make", [reference, native])
A = ((Question("entity", "a"), ENTITIES["a"]),)


def result(id: int, **changes: Any) -> Resolved:
    fields: dict[str, Any] = {"reads": (), "writes": {}, "events": (), "minds": {0: 0}}
    return Resolved(id, **(fields | changes))


def begun(make: Callable[[], Speculation]) -> tuple[Speculation, int]:
    """A speculation whose execution 1 is a proceed, and the id of a resolution of agent 0."""
    speculation = make()
    speculation.start()
    [resolve] = speculation.handle([Observed(2, ()), Proceeded(2)])
    assert isinstance(resolve, Resolve)
    assert resolve.agents == (1,)
    return speculation, resolve.id


def finish(speculation: Speculation) -> None:
    """Let everybody stand still until the last step."""
    speculation.validate()
    commands = speculation.handle([Lost(id) for id in range(1, 4)])
    while not speculation.finished:
        events: list[Any] = []
        for command in commands:
            if isinstance(command, Resolve):
                minds = dict.fromkeys(command.agents, 0)
                events.append(result(command.id, minds=minds))
            elif hasattr(command, "agent"):
                events += [Observed(command.id, ()), Proceeded(command.id)]
        commands = speculation.handle(events)
    speculation.validate()


@BOTH
@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Lost(99), "there is no execution 99"),
        (Observed(-1, ()), "there is no execution -1"),
        (Observed(3, ()), "Observed does not fit the execution 3"),
        (Proceeded(3), "Proceeded does not fit the execution 3"),
        (Proceeded(1), "Proceeded does not fit the execution 1"),
        (result(1), "Resolved does not fit the execution 1"),
        (
            Observed(1, ((Question("entity", "a"), None),)),
            "the execution 1 is sure, and has not read the final versions",
        ),
        (result(3), "the execution 3 has the minds of 0; it needs those of 1"),
        (result(3, minds={}), "the execution 3 has the minds of nobody; it needs those of 1"),
        (
            result(3, minds={1: 0}, reads=((Question("entity", "a"), None),)),
            "the execution 3 is sure, and has not read the final versions",
        ),
        (
            result(3, minds={1: 0}, writes={"b": None}),
            "the execution 3 removes the body of agent 1",
        ),
        (
            result(3, minds={1: 0}, writes={"a": Value((1, 0), 0)}),
            "the execution 3 moves the body of agent 0, which is no member",
        ),
        (Failed(1), "the execution 1 is sure: its error ends the run"),
    ],
    ids=str,
)
def test_events(make: Callable[[], Speculation], event: Any, sentence: str) -> None:
    speculation, resolution = begun(make)
    assert resolution == 3
    with pytest.raises(MetropolisError) as error:
        speculation.handle([event])
    assert str(error.value) == sentence
    finish(speculation)


@BOTH
def test_a_prediction_that_moves_another_agent_is_repeated(
    make: Callable[[], Speculation],
) -> None:
    speculation, resolution = begun(make)
    move = {"a": Value((1, 0), 0)}
    speculation.handle([result(resolution, minds={1: 0})])
    [proceed] = speculation.speculate([1])
    [resolve] = speculation.handle([Observed(proceed.id, ()), Proceeded(proceed.id)])
    assert not speculation.handle([result(resolve.id, minds={1: 0}, writes=move)])
    [late] = speculation.handle([Observed(1, ()), Proceeded(1)])
    commands = speculation.handle([result(late.id)])
    [again] = [one for one in commands if isinstance(one, Resolve)]
    assert (again.step, again.agents, again.sure) == (1, (1,), True)
    sentence = f"the execution {again.id} moves the body of agent 0, which is no member"
    with pytest.raises(MetropolisError, match=sentence):
        speculation.handle([result(again.id, minds={1: 0}, writes=move)])
    speculation.validate()
    speculation.handle([result(again.id, minds={1: 0})])
    speculation.validate()


@BOTH
def test_a_second_observation(make: Callable[[], Speculation]) -> None:
    speculation, _ = begun(make)
    with pytest.raises(MetropolisError, match="the execution 1 has observed before"):
        speculation.handle([Observed(1, A), Observed(1, A)])
    finish(speculation)


@BOTH
@pytest.mark.parametrize(
    ("agents", "sentence"),
    [
        ([0], "agent 0 is not a candidate for speculation"),
        ([7], "agent 7 is not a candidate for speculation"),
        ([-1], "agent -1 is not a candidate for speculation"),
    ],
)
def test_agents_that_cannot_run_ahead(
    make: Callable[[], Speculation], agents: list[int], sentence: str
) -> None:
    speculation, _ = begun(make)
    with pytest.raises(MetropolisError) as error:
        speculation.speculate(agents)
    assert str(error.value) == sentence
    finish(speculation)


@BOTH
def test_an_agent_named_twice(make: Callable[[], Speculation]) -> None:
    speculation, resolution = begun(make)
    speculation.handle([result(resolution, minds={1: 0})])
    assert speculation.candidates() == [1]  # agent 0 lags behind
    with pytest.raises(MetropolisError, match="an agent is named twice: 1, 1"):
        speculation.speculate([1, 1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster_radius": float("nan")}, "the cluster radius is nan; it must be from 0 to 1e"),
        ({"perception_radius": -1}, "the perception radius is -1; it must be from 0 to 1e"),
        ({"target_step": 3}, "the controller runs 2 agents to step 2; .* and runs to step 3"),
        ({"minds": [0]}, "the speculation has 2 bodies and 1 minds"),
        ({"bodies": ["a", "c"]}, "the body 2 is not one of the entities"),
        ({"bodies": ["a", "a"]}, "the entity 0 is the body of two agents"),
        (
            {"entities": ENTITIES | {"c": Value((1e300, 0), 0)}},
            r"there cannot be the entity 2 at \(1e\+300, 0\): its coordinates must lie within",
        ),
    ],
)
def test_starts(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        native(**changes)


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("is_sure", [False, True])
def test_a_write_of_what_is_committed_at_the_same_step(is_native: bool, is_sure: bool) -> None:
    """Agent 1 runs ahead beside agent 0; meanwhile agent 2 commits step 2, far away."""
    bodies = ["a", "b", "c"]
    entities = {n: Value((x, 0), 0) for n, x in zip(bodies, (0, 3, 30), strict=True)}
    starts = [entities[name].position for name in bodies]
    speculation: Speculation
    if is_native:
        native = native_controller(versioned(2, 1), CHEBYSHEV, 1, starts, 4)
        speculation = NativeSpeculation(
            native, CHEBYSHEV, cluster_radius=2, bodies=bodies, entities=entities,
            minds=[0, 0, 0], target_step=4, perception_radius=2,
        )  # fmt: skip
    else:
        controller = ReferenceController(versioned(2, 1), CHEBYSHEV, 1, starts, 4)
        speculation = ReferenceSpeculation(controller, CHEBYSHEV, 2, bodies, entities, [0] * 3, 4)

    def proceed(commands: Sequence[Command], agent: int) -> Resolve:
        [id] = [one.id for one in commands if isinstance(one, Proceed) and one.agent == agent]
        return resolve(speculation.handle([Observed(id, ()), Proceeded(id)]))

    def resolve(commands: Sequence[Command]) -> Resolve:
        [command] = [one for one in commands if isinstance(one, Resolve)]
        return command

    def end(command: Resolve, **writes: Value) -> Sequence[Command]:
        minds = dict.fromkeys(command.agents, 0)
        return speculation.handle([result(command.id, minds=minds, writes=writes)])

    news = Value((5, 0), 1)
    first = speculation.start()
    end(proceed(first, 1))
    end(proceed(speculation.speculate([1]), 1))
    early = proceed(speculation.speculate([1]), 1)
    assert (early.step, early.agents, early.sure) == (2, (1,), False)
    far = proceed(first, 2)
    far = proceed(end(far), 2)
    far = proceed(end(far), 2)
    assert far.step == 2
    end(far, news=news)
    speculation.validate()
    assert end(early, news=news) == [Drop(early.id)]
    speculation.validate()
    assert 1 not in speculation.candidates()  # it is repeated when it is sure
    late = proceed(first, 0)
    commands = end(late)
    assert Proceed in map(type, commands)
    late = proceed(commands, 0)
    late = resolve(end(late))
    assert (late.step, late.agents, late.sure) == (2, (1,), True)
    if is_sure:
        sentence = f"the execution {late.id} writes an entity that a committed result of step 2 has"
        with pytest.raises(MetropolisError, match=sentence):
            end(late, news=news)
    else:
        end(late)
        speculation.validate()


def test_positions_and_orders_that_only_the_native_one_checks() -> None:
    speculation, _ = begun(native)
    nowhere = ((Question("entities", "", (float("nan"), 0), 2), ()),)
    with pytest.raises(MetropolisError, match=r"the execution 1 asks about \(nan, 0\): its coord"):
        speculation.handle([Observed(1, nowhere)])
    far = {"b": Value((float("inf"), 0), 0)}
    with pytest.raises(MetropolisError, match=r"the execution 3 writes the entity 1 at \(inf, 0\)"):
        speculation.handle([result(3, minds={1: 0}, writes=far)])
    finish(speculation)


def test_a_speculation_ends_with_its_controller_s_refusal() -> None:
    speculation, _ = begun(native)
    jump = {"b": Value((9, 0), 0)}
    with pytest.raises(MetropolisError, match=r"agent 1 moved from \(3, 0\) to \(9, 0\) at step 0"):
        speculation.handle([result(3, minds={1: 0}, writes=jump)])
    with pytest.raises(MetropolisError, match="the speculation has already failed"):
        speculation.handle([Lost(1)])


@BOTH
@pytest.mark.parametrize("steps", [[0, 1], [0, 2], [1, 1]])
def test_agents_that_do_not_begin_at_step_0(
    make: Callable[[Sequence[int]], Speculation], steps: list[int]
) -> None:
    with pytest.raises(MetropolisError, match="does not begin with all agents at step 0"):
        make(steps).start()


def test_nothing_before_the_start() -> None:
    with pytest.raises(MetropolisError, match="the speculation has not started"):
        native().handle([])


@BOTH
def test_a_second_start(make: Callable[[], Speculation]) -> None:
    speculation = make()
    speculation.start()
    with pytest.raises(MetropolisError, match="has been started before"):
        speculation.start()
