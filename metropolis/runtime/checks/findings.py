"""The checks of `check_world`: one world, one seed.

Lockstep runs first, sequentially and monitored: bounds, spaces, global randomness, state outside
the engine. Then the same run is repeated with clusters in another order, with other hashes of texts
(if the world is given by its name, without author and options, and its own options are texts or
numbers), out of order under both rules with random delays, interrupted and resumed, and in the mode
optimistic; all histories must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import gymnasium

from metropolis.rules.rules import Rule, conservative, lockstep, versioned
from metropolis.runtime.checks.mutation_check import Watch, global_draws
from metropolis.runtime.checks.other_hashes import as_read
from metropolis.runtime.checks.randomized_runs import (
    Trial,
    WatchedWorld,
    checked_start,
    difference,
)
from metropolis.runtime.checks.rearranged_sets import rearrange_sets
from metropolis.runtime.checks.running_ahead import optimistic_records
from metropolis.runtime.live.setup import checked_reach
from metropolis.runtime.live.stored import Start
from metropolis.types import MetropolisError, Step
from metropolis.workers.cluster_step import has_routine
from metropolis.world.base import Agent, World
from metropolis.world.record import StepRecord
from metropolis.world.saved_check import check_saved
from metropolis.world.saving import copies_of, restore, save
from metropolis.world.scenario import Scenario
from metropolis.world.spaces import misfit
from metropolis.world.user_errors import explained


@dataclass(frozen=True)
class Finding:
    """One defect, in one sentence."""

    kind: str
    """`reset`, `causality`, `space`, `randomness`, `state`, `repetition`, `order`, `hashes`,
    `schedule`, `saving` or `optimistic`."""
    sentence: str


class Checks:
    """All checks with one seed."""

    def __init__(
        self,
        make: Callable[[], Scenario],
        seed: int,
        steps: Step,
        schedules: int,
        options: Mapping[str, Any],
        elsewhere: Callable[[], list[StepRecord]] | None,
    ) -> None:
        """`elsewhere` gives the history in lockstep of another process; None: there is none."""
        self._make, self._seed, self._steps = make, seed, steps
        self._schedules, self._options = schedules, options
        self._found: dict[str, Finding] = {}
        self._elsewhere = elsewhere

    def findings(self) -> dict[str, Finding]:
        """All findings, in order, by their keys; later checks run only if earlier ones pass."""
        scenario, other = self._make(), self._make()
        checked_reach(scenario.world)
        before = global_draws()
        try:
            beginning = checked_start(scenario, self._seed, self._options)
            again = checked_start(other, self._seed, self._options)
        except MetropolisError as error:
            return {f"{error}": Finding("reset", f"seed {self._seed}: {error}")}
        if global_draws() != before:
            self._note("randomness", "World.reset draws from a global generator; use its seed")
        if beginning != again:
            self._note("reset", "World.reset returns something else the second time")
        if not self._found:
            self._compare(beginning, self._watched(beginning))
        return self._found

    def _note(self, kind: str, what: str, key: str | None = None) -> None:
        """Keep a finding; of several with the same key only the first."""
        self._found.setdefault(key or what, Finding(kind, f"seed {self._seed}, {what}"))

    @property
    def _has_serious_finding(self) -> bool:
        """Whether more runs would only repeat known findings."""
        return any(finding.kind != "space" for finding in self._found.values())

    def _watched(self, beginning: Start) -> list[StepRecord]:
        """Run lockstep sequentially, so that each finding can be attributed to an agent."""
        scenario, at = self._make(), _Progress()
        watch = Watch(scenario.world, {agent.name: agent for agent in scenario.agents})
        on_call = partial(self._check_global_draws, at)
        on_observation = partial(self._check_space, scenario.world, "observation")
        world = WatchedWorld(scenario.world, on_call, on_observation)
        trial = Trial(scenario, beginning, lockstep(), self._seed, world=world, one_by_one=True)
        trial.worker.on_call = on_call

        def after_step(step: Step) -> None:
            for change in watch.changes():
                self._note(
                    "state",
                    f"step {step}: {change}; what changes must be written to entities or belong "
                    "to one agent",
                    change.split(" changed", 1)[0],
                )
            at.step = step + 1

        records = trial.run(self._steps, after_step)
        for record in records:
            for agent, action in record.actions.items():
                self._check_space(scenario.world, "action", action, record.step, agent)
        return records

    def _check_space(self, world: World, what: str, value: Any, step: Step, agent: str) -> None:
        space = getattr(world, f"{what}_space", None)
        if not isinstance(space, gymnasium.Space):
            sentence = (
                f"the world {world.name!r} has no {what}_space; it should be a gymnasium.Space"
            )
            self._found.setdefault(sentence, Finding("space", sentence))
        elif value not in space:
            self._note(
                "space",
                f"step {step}, agent {agent!r}: {misfit(f'the {what}', value, space)}",
                f"{what}_space",
            )

    def _check_global_draws(self, at: _Progress, before: bool, code: str, agent: str) -> None:
        now = global_draws()
        for library, was, is_ in zip(("random", "numpy.random"), at.draws, now, strict=True):
            if not before and was != is_:
                self._note(
                    "randomness",
                    f"step {at.step}, agent {agent!r}: {code} draws from the global `{library}`; "
                    "draw from `random` of the view or the agent, which does not depend on order",
                    f"{code} {library}",
                )
        at.draws = now

    def _compare(self, beginning: Start, expected: list[StepRecord]) -> None:
        """Compare `expected` with runs of all other kinds."""
        scenario, draw = self._make(), Random(f"check_world/{self._seed}")
        reach = scenario.world.reach
        rules = {
            "versioned": versioned(reach.perception_radius, reach.max_velocity, reach.joint_radius),
            "conservative": conservative(reach.perception_radius, reach.max_velocity),
        }
        again = "a second lockstep run"
        if any(has_routine(type(agent)) for agent in scenario.agents):
            again += " (with `routine`, which must act as `proceed` would)"
        self._again("repetition", again, expected, self._run(beginning, lockstep()))
        self._again(
            "order",
            "lockstep with the members of clusters in another order",
            expected,
            self._run(beginning, lockstep(), orders=Random(draw.random())),
            advice="; process them in a fixed order, for example "
            "`sorted(cluster, key=lambda member: member.name)`",
        )
        self._compare_hashes(beginning, expected)
        for name, rule in rules.items():
            for number in range(self._schedules):
                what = f"out of order ({name}, schedule {number})"
                run = self._run(beginning, rule, pauses=Random(draw.random()))
                self._again("schedule", what, expected, run)
        self._resume(beginning, expected)
        self._again("optimistic", "a run in the mode optimistic", expected, self._run_ahead)

    def _run(
        self,
        beginning: Start,
        rule: Rule,
        *,
        pauses: Random | None = None,
        orders: Random | None = None,
    ) -> Callable[[], list[StepRecord]]:
        """A function that runs the world under `rule`."""

        def run() -> list[StepRecord]:
            trial = Trial(self._make(), beginning, rule, self._seed)
            trial.worker.pauses, trial.worker.orders = pauses, orders
            trial.author.pauses = pauses
            return trial.run(self._steps)

        return run

    def _run_ahead(self) -> list[StepRecord]:
        return optimistic_records(self._make(), self._seed, self._steps, self._options)

    def _again(
        self,
        kind: str,
        what: str,
        expected: list[StepRecord],
        run: Callable[[], list[StepRecord]],
        advice: str = "",
    ) -> None:
        if self._has_serious_finding:
            return
        try:
            found = difference(expected, run())
        except Exception as error:  # noqa: BLE001 -- lockstep raised none: a finding
            self._note(kind, f"{what} fails, and lockstep does not: {explained(error)}")
            return
        if found is not None:
            self._note(kind, f"{what} differs from lockstep: {found}{advice}")

    def _compare_hashes(self, beginning: Start, expected: list[StepRecord]) -> None:
        if self._has_serious_finding or self._elsewhere is None:
            return
        where = "in a process in which texts have other hashes"
        try:
            records = self._elsewhere()
        except MetropolisError as error:
            self._note("hashes", f"lockstep fails {where}, and not in this one: {error}")
            return
        if found := difference(as_read(beginning, expected), records):
            found = found.replace("step -1, ", "the beginning, ")
            self._note(
                "hashes",
                f"lockstep differs {where}: {found}; sort sets before their order matters, and use "
                "no `hash()` of a text",
            )

    def _resume(self, beginning: Start, expected: list[StepRecord]) -> None:
        """Stop half-way, save, restore into fresh agents, and continue."""
        if self._has_serious_finding:
            return
        half = self._steps // 2
        trial = Trial(self._make(), beginning, lockstep(), self._seed)
        self._check_saved(trial.scenario.agents, -1)
        trial.run(half, partial(self._check_saved, trial.scenario.agents))
        if self._has_serious_finding:
            return
        try:
            copies_of(self._make().agents)  # as stores, forks and optimistic runs do
            saved = {a.name: json.dumps(save(a)) for a in trial.scenario.agents}
            restored, rearranged = self._restored(saved), self._restored(saved)
        except (MetropolisError, TypeError) as error:
            self._note("saving", f"step {half}: {error}")
            return
        start = Start(half, *trial.store.world(half))
        resumed = Trial(restored, start, lockstep(), self._seed)
        check = partial(self._check_saved, restored.agents)
        if found := difference(expected[half:], resumed.run(self._steps, check)):
            self._note(
                "saving",
                f"a run saved and resumed at step {half} differs from lockstep: {found}; an agent "
                "keeps something that is not saved",
            )
        elif rearrange_sets(rearranged.agents):
            resumed = Trial(rearranged, start, lockstep(), self._seed)
            if found := difference(expected[half:], resumed.run(self._steps)):
                self._note(
                    "saving",
                    f"a run resumed at step {half} with agents whose sets have another order "
                    f"differs from lockstep: {found}; sort sets before their order matters",
                )

    def _check_saved(self, agents: Sequence[Agent], step: Step) -> None:
        """Note the first state of an agent, after `step`, that cannot be restored."""
        try:
            for agent in agents:
                check_saved(agent, json.loads(json.dumps(save(agent))))
        except (MetropolisError, TypeError) as error:
            self._note("saving", f"step {step + 1}: {error}", "saved")

    def _restored(self, saved: Mapping[str, str]) -> Scenario:
        scenario = self._make()
        for agent in scenario.agents:
            restore(agent, json.loads(saved[agent.name]))
        return scenario


@dataclass
class _Progress:
    """The progress of the monitored run."""

    step: Step = 0
    draws: tuple[Any, Any] = (None, None)
