"""Speculative runs have lockstep's history, and a fault in any check changes it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.controller.base import InvariantError
from metropolis.rules.rules import Rule
from metropolis.speculation.base import Question, Reads
from metropolis.speculation.executions import Executions
from metropolis.speculation.reference import ReferenceSpeculation
from metropolis.types import MetropolisError, Step
from tests.speculation.executions import Archive, OptimisticRun, lockstep, rule_of
from tests.speculation.worlds import View, World

SEEDS = st.integers(0, 10**9)


@given(SEEDS, st.sampled_from([0.0, 0.3, 0.9, 1.0]), st.sampled_from([0.0, 0.05, 0.3]))
def test_equals_lockstep(seed: int, risk: float, faults: float) -> None:
    world = World(seed)
    expected, _ = lockstep(world)
    assert OptimisticRun(world, seed, risk=risk, faults=faults).run() == expected, world


@pytest.mark.campaign
def test_equals_lockstep_in_many_worlds() -> None:
    for seed in range(2_000):
        world = World(seed)
        run = OptimisticRun(world, seed, validates=seed % 10 == 0)
        assert run.run() == lockstep(world)[0], world


class _Blind(View):
    """Does not record searches for entities."""

    kinds = ("entities",)

    def _read(self, question: Question) -> Any:
        answer = super()._read(question)
        if question.kind in self.kinds:
            self.reads.pop()
        return answer


class _Deaf(_Blind):
    """Does not record searches for events."""

    kinds = ("events",)


class _Shortsighted(View):
    """Records less than it searched."""

    def _read(self, question: Question) -> Any:
        answer = super()._read(question)
        if question.kind == "entities":
            nearer = question._replace(radius=question.radius - 1)
            self.reads[-1] = nearer, self._ask(nearer, self._step)
        return answer


class _NoNewcomers(Executions):
    """Does not notice entities that were not there."""

    def holds(self, reads: Reads, step: Step, *, final: bool) -> bool:
        for question, before in reads:
            now: Any = self.versions.answer(question, step, final=final)
            if question.kind == "entities":
                known = {name for name, _ in before}  # type: ignore[union-attr,misc]
                now = tuple(one for one in now if one[0] in known)
            if now != before:
                return False
        return True


class _NamesOnly(Executions):
    """Compares who is there, not how."""

    def holds(self, reads: Reads, step: Step, *, final: bool) -> bool:
        def names(answer: Any, kind: str) -> Any:
            return [name for name, _ in answer] if kind == "entities" else answer

        return all(
            names(self.versions.answer(question, step, final=final), question.kind)
            == names(before, question.kind)
            for question, before in reads
        )


class _TrustsPredictions(Executions):
    """Commits what agrees with predictions."""

    def holds(self, reads: Reads, step: Step, *, final: bool) -> bool:
        return super().holds(reads, step, final=False)


class _AnyMembers(Executions):
    """Commits a cluster's step although a member is missing."""

    def is_valid_resolution(self, resolution: Any) -> bool:
        step = resolution.step
        current = all(self.proceeds[p.agent].get(step) is p for p in resolution.proceeds)
        return current and (resolution.sure or self.holds(resolution.reads, step, final=False))

    def may_commit(self, turn: Any, result: Any) -> bool:
        return super().may_commit(type(turn)(turn.step, result.members), result)


class _OldMinds(Executions):
    """Does not compare the minds that executions began with."""

    def is_valid(self, proceed: Any) -> bool:
        mind = self.mind_before(proceed.agent, proceed.step)
        before, proceed.before = proceed.before, mind[0] if mind else proceed.before
        try:
            return super().is_valid(proceed)
        finally:
            proceed.before = before

    def is_final(self, proceed: Any) -> bool:
        before, proceed.before = proceed.before, self.final_minds[proceed.agent]
        try:
            return super().is_final(proceed)
        finally:
            proceed.before = before


class _KeepsEvents(Archive):
    """Events of replaced results remain."""

    def drop(self, id: int) -> None:
        step, _, events = self._results[id]
        super().drop(id)
        self.put(-id, step, {}, events)
        self.finalise(-id)


def _with(executions: type[Executions]) -> type[ReferenceSpeculation]:
    class Faulty(ReferenceSpeculation):
        make_executions = executions

    return Faulty


def _loose(world: World) -> Rule:
    rule = rule_of(world)
    return Rule(rule.couple_radius - 1, rule.block_radius - 1)


DIFFERS = "the history differs"
PLANTED: dict[str, tuple[dict[str, Any], str]] = {
    "entities not recorded": ({"view": _Blind}, DIFFERS),
    "events not recorded": ({"view": _Deaf}, DIFFERS),
    "region too small": ({"view": _Shortsighted}, DIFFERS),
    "newcomers not noticed": ({"make": _with(_NoNewcomers)}, DIFFERS),
    "values not compared": ({"make": _with(_NamesOnly)}, DIFFERS),
    "predictions committed": ({"make": _with(_TrustsPredictions)}, DIFFERS),
    "members not compared": (
        {"make": _with(_AnyMembers)},
        "was dispatched in the cluster .* and committed in",
    ),
    "minds not compared": ({"make": _with(_OldMinds)}, DIFFERS),
    "minds not copied": ({"copies_minds": False}, DIFFERS),
    "events kept": ({"archive": _KeepsEvents}, "is sure, and has not read the final versions"),
    "finality too early": ({"make_rule": _loose}, DIFFERS),
}
"""Fault -> its arguments of `OptimisticRun`, and what comes of it, as a regular expression."""


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught(fault: str) -> None:
    arguments, expected = PLANTED[fault]
    for seed in range(100):
        world = World(seed)
        run = OptimisticRun(world, seed, validates=False, **arguments)
        try:
            found = "" if run.run() == lockstep(world)[0] else DIFFERS
        except (InvariantError, AssertionError, MetropolisError) as error:
            found = str(error)
        if re.search(expected, found):
            return
    pytest.fail(f"in no world {expected}")
