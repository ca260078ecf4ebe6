"""Conformance tests of retraction, in retractable runs; see `metropolis.store.check`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import StoreError
from metropolis.store.checked_run import INFO, LEASE_S, CheckedRun
from metropolis.store.claim import Lookahead
from metropolis.types import Dispatch

RETRACTABLE = replace(INFO, retractable=True)


def _shown(run: CheckedRun) -> tuple[Any, ...]:
    """All that is committed, and what the steps from 1 on see of it."""
    store, nodes = run.store, run.store.nodes()
    acknowledged = [(one.execution, one.continues) for one in store.acknowledgements("0", 0)]
    worlds = [store.world(step) for step in range(1, 5)]
    return worlds, list(nodes.steps), list(nodes.positions), store.minds(range(4)), acknowledged


def _together(run: CheckedRun, step: int, *agents: int) -> None:
    run.dispatch((step, agents))
    run.require(run.commit(run.claim()), "refuses a commit that is due")


def _check_retraction(run: CheckedRun) -> None:
    store = run.store
    run.step(0, 1, 2, 3)
    before = _shown(run)
    _together(run, 1, 0, 1)
    run.step(0, 2, 1, 1)
    last = store.nodes().last_id
    store.retract(run.fence, 3, 1)
    store.retract(run.fence, 0, 3)
    run.require(list(store.nodes().steps) == [3, 4, 2, 1], "retracts steps that are not committed")
    store.retract(run.fence, 1, 2)
    run.require(list(store.nodes().steps) == [3, 2, 2, 1], "does not retract one agent's steps")
    for _ in range(2):  # the reply to the first was lost
        store.retract(run.fence, 0, 1)
        run.require(
            list(store.nodes().steps) == [1, 1, 2, 1],
            "does not retract the steps of the other members of a cluster",
        )
    run.require(store.world(1) == before[0][0], "does not restore the world of a retracted step")
    store.retract(run.fence, 2, 1)
    run.require(_shown(run) == before, "does not restore what was before the retracted steps")
    run.require(store.inspect().counts["retracted"] == 5, "miscounts retracted commits")
    _together(run, 1, 0, 1)
    (again,) = store.acknowledgements(last, 0)
    run.require(again.execution.agents == (0, 1), "loses commits after a retraction")


def _check_slices(run: CheckedRun) -> None:
    """A step that is run again sees what it saw before, and is the same."""
    run.step(0, 1, 2, 3)
    run.dispatch((1, (0, 1)))
    claim = run.claim()
    run.require(run.commit(claim), "refuses a commit that is due")
    run.step(0, 1, 2)
    run.store.retract(run.fence, 1, 1)
    run.dispatch((1, (0, 1)))
    again = run.claim()
    run.require(set(again.minds) == {0, 1}, "does not send a mind that was restored")
    seen = [
        sorted((since, entity.name, entity.position) for since, entity in one.snapshot.versions)
        for one in (claim, again)
    ]
    run.require(seen[0] == seen[1], "shows a step that is run again another world")
    events = [[event.source for event in one.snapshot.events] for one in (claim, again)]
    run.require(events[0] == events[1], "shows a step that is run again other events")


def _check_late_results(run: CheckedRun) -> None:
    store = run.store
    run.step(0)
    run.dispatch((1, (0,)), (0, (1,)))
    claims = {claim.agents: claim for claim in (run.claim(), run.claim())}
    lost, other = claims[0,], claims[1,]
    store.retract(run.fence, 0, 0)
    run.require(not store.extend(lost, LEASE_S), "extends a claim of a retracted agent")
    run.require(not run.commit(lost), "accepts the commit of a retracted agent")
    run.require(run.commit(other), "refuses the commit of an agent that was not retracted")
    run.step(0)
    run.dispatch((1, (0,)))
    run.require(not run.commit(lost), "accepts the late commit of a retracted agent")
    run.require(run.commit(run.claim()), "refuses a commit that is due")


def _check_lookahead(run: CheckedRun) -> None:
    store, ahead = run.store, {0: Lookahead(9, (0, 0), 20.0)}
    store.dispatch(run.fence, [Dispatch(0, (0,))], {}, 0, ahead)
    for _ in range(2):
        run.require(run.commit(run.claim()), "refuses a commit that is due")
    store.retract(run.fence, 0, 0)
    run.require(store.claim("first", LEASE_S) is None, "hands out the step of a retracted agent")
    run.dispatch((0, (0,)))
    claim = run.claim()
    run.require(claim.until == 0, "keeps the lookahead of a retracted agent")
    run.require(run.commit(claim), "refuses a commit that is due")
    run.require(store.claim("first", LEASE_S) is None, "dispatches by a lookahead that is void")


def _check_kept(run: CheckedRun) -> None:
    """Answers stay; minds kept of a retracted step do not."""
    store = run.store
    early, late = (Key(0, 0, "plan", digest, 0) for digest in "ab")
    answer = Completion("walk", 3, 1, "stop")
    run.require(store.keep_minds(run.fence, 1), "keeps no minds")
    run.dispatch((0, (0,)), (0, (1,)))
    store.keep_answer(early, answer)
    run.require(run.commit(run.claim(), {late: answer}), "refuses a commit that is due")
    run.require(run.commit(run.claim()), "refuses a commit that is due")
    store.retract(run.fence, 0, 0)
    run.require(set(store.kept_minds()) == {1}, "keeps a mind that was retracted")
    run.dispatch((0, (0,)))
    claim = run.claim()
    run.require(dict(claim.answers) == {early: answer, late: answer}, "loses answers in retraction")
    run.require(run.commit(claim), "refuses a commit that is due")
    run.require(set(store.kept_minds()) == {0, 1}, "does not keep the mind of a repeated step")


def _check_refusals(run: CheckedRun) -> None:
    run.step(0, 1, 2, 3, 0)
    run.store.collect(run.fence, 1)
    run.refuses(StoreError, "retracts what is collected", run.store.retract, run.fence, 0, 0)
    run.store.retract(run.fence, 0, 1)
    run.require(list(run.store.nodes().steps) == [1] * 4, "does not retract down to the floor")
    run.store.dispatch(run.fence, [Dispatch(1, (0,))], {}, 1)
    run.require(run.commit(run.claim()), "refuses a commit that is due")


RETRACTION_CHECKS = (
    _check_retraction,
    _check_slices,
    _check_late_results,
    _check_lookahead,
    _check_kept,
    _check_refusals,
)
