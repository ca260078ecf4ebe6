"""The dependencies by value that a run records: sufficient, as few as a brute-force search finds,
and the same in every mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.recorded_dependencies import (
    OBSERVATIONS_MAX,
    RecordedDependencies,
)
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.replays.replay import Setting, replay
from metropolis.sim.fleet import SimulatedFleet
from metropolis.store.execution import ClusterEffects, Execution
from metropolis.trace.parquet import read_trace
from metropolis.world.base import Agent, World
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.state import Area, State
from metropolis.world.transaction import Transaction, split_into_clusters
from metropolis.world.view import Reads, View
from tests.runtime.recorded_runs import (
    STEPS,
    Ran,
    Row,
    Rows,
    SteadyMeadow,
    observed,
    resolved,
    run,
    steady,
)

# --- the dependencies suffice


def observes_from(ran: Ran, agent: int, step: int, known: Rows) -> Any:
    """What the agent observes if only the agent-steps in `known` have happened."""
    state = State(ran.world.metric, ran.world.perception_radius, ran.entities)
    for before in range(step):
        (execution,) = ran.executions[before]
        present = [name for name in ran.world.names if (ran.ids[name], before) in known]
        bodies = [state.entity(name, before) for name in present]
        positions = [body.position for body in bodies if body is not None]
        for indices in split_into_clusters(ran.world.reach, positions):
            group = [present[i] for i in indices]
            (whole,) = (one for one in execution.clusters if group[0] in one.members)
            if whole.answered:
                if sorted(group) == sorted(whole.members):
                    writes = {name: execution.writes[name] for name in whole.writes}
                    events = [e for e in execution.events if e.source in whole.members]
                    state.commit(before, writes, events)
                continue
            cluster = resolved(ran, state, before, group)
            if cluster is not None:
                state.commit(before, cluster.writes, cluster.events)
    view = View(state, ran.world.reach, ran.seed, step, ran.world.names[agent])
    return ran.world.observe(view)


def first_wrong(ran: Ran) -> Row | None:
    """An agent-step that its recorded dependencies do not explain, if there is one."""
    everything = frozenset((a, s) for a in range(len(ran.ids)) for s in range(STEPS))
    for (agent, step), known in ran.closures().items():
        if observes_from(ran, agent, step, known) != observes_from(ran, agent, step, everything):
            return agent, step
    return None


@given(st.integers(0, 10_000))
@example(3385)  # an agent hears what it said itself in a cluster whose members were asked
@settings(max_examples=25, deadline=None)
def test_what_happened_otherwise_need_not_be_known(seed: int) -> None:
    assert first_wrong(Ran(seed)) is None


def forget_areas(patch: pytest.MonkeyPatch) -> None:
    """A read that is not recorded."""
    true = View._near

    def near(self: View, radius: float | None) -> Any:
        found = true(self, radius)
        self.reads.areas.clear()
        return found

    patch.setattr(View, "_near", near)


def forget_events(patch: pytest.MonkeyPatch) -> None:
    true = View.events

    def events(self: View, kind: str | None = None) -> Any:
        found = true(self, kind)
        self.reads.events.clear()
        return found

    patch.setattr(View, "events", events)


def forget_who_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordedDependencies, "_gone", lambda *_, **__: ())


def take_all_alone(patch: pytest.MonkeyPatch) -> None:
    """Every change is due to one member of the cluster."""
    true = RecordedDependencies._change
    patch.setattr(
        RecordedDependencies,
        "_change",
        lambda self, step, names, reads: true(self, step, names[:1], reads[:1]),
    )


@pytest.mark.parametrize("plant", [forget_areas, forget_events, forget_who_left, take_all_alone])
def test_planted_faults_are_caught(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    for seed in range(60):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            ran = Ran(seed)
        if first_wrong(ran) is not None:
            return
    pytest.fail("no world of 60 shows the fault")


class Line(World):
    """Ann stays; Ben walks by."""

    perception_radius, max_velocity = 2, 1

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity("ann", (0, 0), AGENT), Entity("ben", (-6, 0), AGENT)]

    def observe(self, view: View) -> Any:
        return [body.name for body in view.agents()]

    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            if member.name == "ben":
                member.move((member.position[0] + 1, 0))


@dataclass
class Idle(Agent):
    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        return None


class Square(Line):
    """Everybody speaks, and all are heard."""

    observations = 0

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        return [Entity(f"a{number}", (0, 0), AGENT) for number in range(60)]

    def observe(self, view: View) -> Any:
        Square.observations += 1
        return [(event.source, event["words"]) for event in view.events()]

    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            member.emit("says", words=f"{member.step}")


def test_a_crowd_that_speaks_is_observed_a_bounded_number_of_times() -> None:
    """What is not tested counts as needed, as here it is."""
    agents = [Idle(f"a{number}") for number in range(60)]
    trace = Simulation(Square(), agents, Client(Scripted()), mode="lockstep").run(3).trace
    assert Square.observations <= 3 * 60 * (OBSERVATIONS_MAX + 2)
    assert trace.dependencies is not None
    assert np.diff(trace.dependencies.offsets).tolist() == [0] * 60 + [59] * 120


def test_steps_that_read_the_same_share_it() -> None:
    executions: list[list[Execution]] = []
    agents = [Idle("ann"), Idle("ben")]
    with observed(executions):
        Simulation(Line(), agents, Client(Scripted()), mode="lockstep").run(14)
    reads = [(one.observed["ann"], one.resolved["ann"]) for (one,) in executions]
    shared = [(one[0] is other[0], one[1] is other[1]) for one, other in pairwise(reads)]
    assert shared == [(True, True)] * 3 + [(False, False)] * 6 + [(True, True)] * 4


# --- and are as few as the definition says


class Definition:
    """Dependencies by searching all steps for the last change of everything that was read."""

    def __init__(self, ran: Ran) -> None:
        self.ran = ran
        self.states = [{entity.name: entity for entity in ran.entities}]
        for (execution,) in ran.executions:
            now = dict(self.states[-1])
            for name, entity in execution.writes.items():
                now[name] = entity
            self.states.append({name: entity for name, entity in now.items() if entity})
        self._rows: dict[Row, Rows] = {}
        self._changes: dict[tuple[Any, ...], Rows] = {}
        """(*members, step) -> the agent-steps that a change by these members depends on."""

    def of(self, agent: int, step: int) -> Rows:
        row = agent, step
        if row not in self._rows:
            (execution,) = self.ran.executions[step]
            found = self._of_reads(execution.observed[self.ran.world.names[agent]], step)
            if step:
                (before,) = self.ran.executions[step - 1]
                found |= {(agent, step - 1)} | self.of(agent, step - 1)
                for cluster in before.clusters:
                    if self.ran.world.names[agent] in cluster.answered:
                        found |= self._of_joint(cluster, step - 1)
            self._rows[row] = found - {(agent, step)}
        return self._rows[row]

    def _of_reads(self, reads: Reads, step: int) -> Rows:
        found: Rows = frozenset()
        for name in reads.entities:
            found |= self._of_last(name, step, lambda entity: True)
        names = {name for state in self.states[: step + 1] for name in state}
        for area in reads.areas:
            for name in names:
                found |= self._of_last(name, step, partial(self._is_near, area))
        for events in reads.events.values():
            for event in events:
                if event.kind == "shout":
                    found |= self._of_event(event.source, step - 1)
        return found

    def _of_last(self, name: str, step: int, near: Callable[[Entity], bool]) -> Rows:
        """The last step whose change of the entity shows among what is near."""
        shown = [
            entity if entity is not None and near(entity) else None
            for entity in (state.get(name) for state in self.states[: step + 1])
        ]
        for last in reversed(range(step)):
            if shown[last] != shown[last + 1]:
                after = self.states[last + 1].get(name)
                return self._of_change(last, partial(_writes, name, after), name)
        return frozenset()

    def _is_near(self, area: Area, entity: Entity) -> bool:
        return self.ran.world.metric.perceives(area[0], entity.position, area[1])

    def _of_event(self, source: str, step: int) -> Rows:
        (execution,) = self.ran.executions[step]
        said = [event for event in execution.events if event.source == source]
        return self._of_change(step, partial(_says, source, said), source)

    def _of_change(self, step: int, same: Callable[[Transaction], bool], name: str) -> Rows:
        (execution,) = self.ran.executions[step]
        (cluster,) = (
            one for one in execution.clusters if name in one.members or name in one.writes
        )
        if len(cluster.members) > 1 and not cluster.answered:
            state = State(self.ran.world.metric, 1, self.states[step].values(), step)
            if step:
                state.restore_events(self.ran.executions[step - 1][0].events)
            for member in cluster.members:
                alone = resolved(self.ran, state, step, [member])
                if alone is not None and same(alone):
                    return self._of_members([member], [alone[member].reads], step)
        return self._of_joint(cluster, step)

    def _of_joint(self, cluster: ClusterEffects, step: int) -> Rows:
        (execution,) = self.ran.executions[step]
        reads = [execution.resolved[name] for name in cluster.members]
        return self._of_members(cluster.members, reads, step)

    def _of_members(self, names: Sequence[str], reads: Sequence[Reads], step: int) -> Rows:
        key = *names, step
        if key not in self._changes:
            rows = frozenset((self.ran.ids[name], step) for name in names)
            self._changes[key] = rows.union(
                *(self.of(*row) for row in rows), *(self._of_reads(each, step) for each in reads)
            )
        return self._changes[key]


def _writes(name: str, entity: Entity | None, cluster: Transaction) -> bool:
    return name in cluster.writes and cluster.writes[name] == entity


def _says(source: str, events: Sequence[Event], cluster: Transaction) -> bool:
    return [event for event in cluster.events if event.source == source] == events


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_they_are_those_of_the_definition(seed: int) -> None:
    ran = Ran(seed)
    definition = Definition(ran)
    for (agent, step), known in ran.closures().items():
        assert known == definition.of(agent, step), (agent, step)


def test_nothing_is_listed_twice() -> None:
    """No dependency is one of the agent's step before."""
    ran = Ran(3)
    closures, agents = ran.closures(), len(ran.ids)
    assert len(ran.recorded.ago) > 0
    for row in np.repeat(np.arange(STEPS * agents), np.diff(ran.recorded.offsets)):
        step, agent = divmod(int(row), agents)
        listed = slice(ran.recorded.offsets[row], ran.recorded.offsets[row + 1])
        for writer, ago in zip(ran.recorded.writer[listed], ran.recorded.ago[listed], strict=True):
            assert (int(writer), step - int(ago)) not in closures.get((agent, step - 2), ())


# --- in live runs and replays


@given(st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_every_mode_records_the_same(seed: int) -> None:
    expected = None
    for mode in ("lockstep", "sequential", "conservative", "versioned", "optimistic"):
        found = run(steady(seed), mode, seed=seed).trace.dependencies
        assert found is not None
        expected = expected or found
        for column, value in vars(found).items():
            np.testing.assert_array_equal(value, getattr(expected, column), err_msg=mode)


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_no_rule_is_faster_than_the_oracle_of_values(seed: int) -> None:
    """With an instance for every call: waiting for fewer others, nobody is later."""
    trace = run(steady(seed), seed=seed).trace
    setting = Setting.of(trace.meta, SimulatedFleet.uniform("llama-3-8b/l4", 200))
    oracle_sim_s = replay(trace, "oracle_values", setting).makespan_sim_s
    for mode in ("versioned", "conservative", "lockstep"):
        assert oracle_sim_s <= replay(trace, mode, setting).makespan_sim_s * (1 + 1e-9), mode


def test_a_folder_keeps_them_and_a_run_that_continues_lacks_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorded = run(steady(3), seed=3, out=folder).trace.dependencies
    kept = read_trace(folder).dependencies
    assert recorded is not None
    assert kept is not None
    for column, value in vars(recorded).items():
        np.testing.assert_array_equal(value, getattr(kept, column))
    run(steady(3), seed=3, out=folder, resume=True, steps=STEPS + 2)
    assert read_trace(folder).dependencies is None


def test_a_world_asked_again_may_wait_and_fail() -> None:
    """What the world does with one action of many is tried; its errors are no errors of the run."""

    class Odd(SteadyMeadow):
        async def resolve(self, cluster: Transaction) -> None:
            if len(cluster.members) == 1 and cluster.members[0].name == "w00":
                raise ValueError
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
            await super().resolve(cluster)

    plain, odd = SteadyMeadow(3, side=1, joint=1), Odd(3, side=1, joint=1)
    assert run(odd, seed=1).history_sha256 == run(plain, seed=1).history_sha256
