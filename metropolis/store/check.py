"""A conformance test for authors of stores: `check_store(server)`.

Each check uses a separate run: four agents on a line, ten apart, with a perception radius of two.
"""

from __future__ import annotations

import uuid

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.base import FencedOutError, RunInfo, Server, StoreError
from metropolis.store.check_late_commits import LATE_COMMIT_CHECKS
from metropolis.store.check_retraction import RETRACTABLE, RETRACTION_CHECKS
from metropolis.store.checked_run import (
    AGENTS,
    FIRST_MIND,
    INFO,
    LEASE_S,
    CheckedRun,
    refuses,
    require,
)
from metropolis.store.claim import Lookahead, StateSnapshot
from metropolis.store.execution import Execution
from metropolis.types import Dispatch
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.parts import to_parts


def check_store(server: Server) -> None:
    """Test `server`; raises MetropolisError on the first violation.

    Its sentence begins with the class at fault, the server's or the store's.
    Its runs are named `check-…` and are removed, except a failed one.
    """
    for info, check in (
        *((INFO, check) for check in CHECKS),
        *((RETRACTABLE, check) for check in (*RETRACTION_CHECKS, _check_memory)),
    ):
        name = f"check-{uuid.uuid4().hex}"
        run = CheckedRun(server.store(name), 0)
        run.refuses(StoreError, "knows a run that has not begun", run.store.info)
        refuses(server, StoreError, "removes a run that does not exist", server.remove, name)
        _begin(run, info)
        run.fence = run.store.take_lease("the check", LEASE_S)
        check(run)
        fence = run.store.take_lease("the check", LEASE_S)
        require(server, name in server.runs(), "does not list a run")
        refuses(server, StoreError, "removes a run that is held", server.remove, name)
        run.store.release_lease(fence)
        server.remove(name)
        require(server, name not in server.runs(), "lists a run that was removed")
        run.refuses(StoreError, "knows a run that was removed", run.store.nodes)


def _begin(run: CheckedRun, info: RunInfo) -> None:
    bodies = [Entity(name, (10 * i, 0), AGENT, {"at": 0}) for i, name in enumerate(AGENTS)]
    minds = dict.fromkeys(range(len(AGENTS)), FIRST_MIND)
    run.store.begin(info, [*bodies, Entity("well", (2, 2))], minds, [Event(-1, "ann", (0, 0), "x")])
    run.refuses(StoreError, "begins a run twice", lambda: run.store.begin(info, bodies, minds))
    run.require(run.store.info() == info, "forgets what a run is")


def _check_fencing(run: CheckedRun) -> None:
    store = run.store
    run.refuses(StoreError, "grants a lease twice", lambda: store.take_lease("other", 1))
    store.renew_lease(run.fence, 0)
    taken = store.take_lease("other", LEASE_S)
    run.require(taken > run.fence, f"gives the fence {taken} after {run.fence}")
    for act in (
        lambda: store.renew_lease(run.fence, 1),
        lambda: store.release_lease(run.fence),
        lambda: store.dispatch(run.fence, [Dispatch(0, (0,))], {}, 0),
        lambda: store.collect(run.fence, 0),
        lambda: store.set_last_step(run.fence, 5),
        lambda: store.keep_minds(run.fence, 5),
        lambda: store.retract(run.fence, 0, 0),
    ):
        run.refuses(FencedOutError, "obeys a controller that has lost its lease", act)
    run.require(store.claim("first", 1) is None, "hands out clusters of a stale controller")
    store.release_lease(taken)
    run.refuses(
        FencedOutError, "obeys a lease that was given back", lambda: store.renew_lease(taken, 1)
    )


def _check_order(run: CheckedRun) -> None:
    run.require(run.store.claim("first", 1, 0.01) is None, "hands out undispatched clusters")
    run.step(0, 1, 1)
    run.dispatch((2, (1,)), (1, (0,)), (0, (2, 3)))
    run.dispatch((0, (2, 3)), (1, (0,)))
    claims = [run.claim() for _ in range(3)]
    run.require(
        [(claim.step, claim.agents) for claim in claims] == [(0, (2, 3)), (1, (0,)), (2, (1,))],
        "does not hand out the lowest step first",
    )
    run.dispatch((0, (2, 3)), (0, (1,)))
    run.require(run.store.claim("first", 1) is None, "hands out what is claimed, or was committed")
    run.refuses(ValueError, "takes a cluster of two steps", lambda: run.dispatch((0, (1, 2))))


def _check_affinity(run: CheckedRun) -> None:
    run.dispatch((0, (0,)), (0, (1,)), (0, (2,)))
    for worker in ("first", "other", "first"):
        run.require(run.commit(run.claim(worker)), "refuses a commit that is due")
    run.dispatch((1, (0,)), (1, (1,)))
    claim = run.claim("other")
    run.require(claim.agents == (1,), "does not prefer the worker that has run a cluster last")
    run.require(not claim.minds, "sends a mind to the worker that has committed it")
    run.require(
        run.store.minds([1]) == {1: {"by": "other", "step": 1}}, "forgets a mind that is claimed"
    )
    run.commit(claim)
    run.dispatch((2, (1,)))
    claim = run.claim("other", affinity=1)
    run.require(claim.agents == (1,), "keeps no affinity over one step")
    run.store.give_back(claim)
    run.require(
        run.claim("other", affinity=1).agents == (0,), "holds a worker's mind after it gave it back"
    )
    claim = run.claim("third")
    run.require(
        claim.minds == {1: to_parts({"by": "other", "step": 2})},
        "does not send the mind that was committed",
    )


def _check_several(run: CheckedRun) -> None:
    store = run.store
    run.dispatch((0, (0,)), (0, (1,)), (0, (2, 3)))
    three = store.claims("first", LEASE_S, most=5)
    run.require(
        [claim.agents for claim in three] == [(0,), (1,), (2, 3)], "does not hand out all at once"
    )
    for claim in three:
        run.require(run.commit(claim), "refuses a commit that is due")
    run.dispatch((1, (0,)), (1, (1,)), (1, (2,)))
    some = store.claims("first", LEASE_S, most=2, own=True)
    run.require([claim.agents for claim in some] == [(0,), (1,)], "hands out too many")
    run.require(not store.claims("other", LEASE_S, own=True), "hands out what others ran last")
    run.require(run.commit(some[0]), "refuses a commit that is due")
    store.give_back(some[1])
    freed = store.claims("other", LEASE_S, most=5, own=True)
    run.require([claim.agents for claim in freed] == [(1,)], "keeps what was given back for one")
    left = store.claims("other", LEASE_S, most=5)
    run.require([claim.agents for claim in left] == [(2,)], "hands out nothing that others ran")
    run.require(set(left[0].minds) == {2}, "does not send the mind of what others ran last")


def _check_minds(run: CheckedRun) -> None:
    run.dispatch((0, (0,)))
    claim = run.claim()
    run.require(claim.minds == {0: to_parts(FIRST_MIND)}, "does not send the mind it began with")
    changed: dict[str, bytes | None] = {'[[0,"by"]]': None, '[[1,"step"]]': b"1", '[[2,"x"]]': b"2"}
    committed = bool(run.store.commit(claim, Execution(0, (0,), {}, {}, [], {}, {0: changed})))
    run.require(committed, "refuses a commit that is due")
    run.require(run.store.minds([0]) == {0: {"step": 1, "x": 2}}, "does not change minds in part")
    run.dispatch((1, (0,)))
    run.require(not run.claim().minds, "sends a mind to the worker that has committed it")


def _check_slice(run: CheckedRun) -> None:
    run.step(1, 0, 0)
    run.dispatch((2, (0,)), (1, (1,)), (0, (2, 3)))
    three = {claim.agents: claim.snapshot for claim in (run.claim(), run.claim(), run.claim())}
    seen = {since: entity for since, entity in three[0,].versions if entity.name == "ann"}
    run.require(seen == {2: Entity("ann", (0, 1), AGENT, {"at": 2})}, "shows a wrong body")
    names = {entity.name for _, entity in three[0,].versions}
    run.require("well" in names, "does not show what is within the radius")
    run.require("letter/ann/0" not in names, "shows a removed entity")
    run.require(
        [(event.source, event["verse"]) for event in three[0,].events] == [("ann", 0), ("ann", 1)],
        "does not show the events of the step before, in their order",
    )
    run.require(
        {(since, entity.name) for since, entity in three[2, 3].versions}
        >= {(0, "cem"), (0, "dee")},
        "does not show every member's surroundings",
    )


def _check_commits(run: CheckedRun) -> None:
    run.dispatch((0, (0, 1)))
    lost = run.claim("first", 0)
    held = run.claim("other")
    run.require(held.number != lost.number, "does not distinguish claims")
    run.require(not run.store.extend(lost, LEASE_S), "extends a claim that is lost")
    run.require(run.store.extend(held, LEASE_S), "does not extend a claim")
    run.store.give_back(lost)
    run.require(not run.commit(lost), "accepts the commit of a claim that others have now")
    run.require(run.commit(held), "refuses a commit that is due")
    run.require(run.commit(held), "refuses a repeated commit")
    run.require(not run.commit(lost), "accepts a second commit of a step")
    run.dispatch((1, (0,)))
    late = run.claim("first", 0)
    run.require(run.store.claim("other", LEASE_S) is not None, "keeps a claim that has run out")
    run.dispatch((1, (0, 1)))
    run.require(not run.commit(late), "accepts a commit of what another controller took back")
    run.claim("other", 0)
    run.require(run.commit(run.claim("first", 0)), "refuses a late commit of an unclaimed cluster")
    nodes = run.store.nodes()
    run.require(list(nodes.steps) == [2, 2, 0, 0], f"has agents at steps {nodes.steps}")
    run.require(list(nodes.positions)[:3] == [(0, 1), (10, 1), (20, 0)], "misplaces agents")
    counts = run.store.inspect().counts
    expected = {"commits": 2, "agent_steps": 4, "refused": 3, "expired": 3}
    run.require({name: counts.get(name) for name in expected} == expected, f"counts {dict(counts)}")


def _check_lookahead(run: CheckedRun) -> None:
    run.step(1, 1)
    ahead = {0: Lookahead(3, (0, 0), 20.0)}
    run.store.dispatch(run.fence, [Dispatch(0, (0,)), Dispatch(0, (2, 3))], {}, 0, ahead)
    run.store.dispatch(run.fence, [], {}, 0, {0: Lookahead(2, (0, 0), 10.0)})
    claim, other = run.claim(), run.claim()
    run.require((claim.until, other.until) == (3, 0), "does not return the end of a lookahead")
    seen = {entity.name for _, entity in claim.snapshot.versions}
    run.require({"bob", "cem"} <= seen, "does not show what is within reach of a lookahead")
    following = claim.following(run.execution_of(claim))
    run.require(run.commit(claim, lease_s=LEASE_S), "refuses a commit that continues")
    run.require(run.commit(claim, lease_s=LEASE_S), "refuses a repeated commit that continues")
    run.require(run.store.claim("other", LEASE_S) is None, "hands out a step of a lookahead")
    run.require(run.store.extend(following, LEASE_S), "does not extend a following claim")
    run.store.give_back(following)
    again = run.claim()
    run.require((again.step, again.until) == (1, 3), "loses what a worker gave back")
    same = _shown(again.snapshot) == _shown(following.snapshot)
    run.require(same, "does not show the effects of agents that are ahead, by step")
    run.require(set(again.minds) == {0}, "does not send a mind that a worker may have changed")
    run.require(not run.commit(following), "accepts the commit of what was given back")
    run.require(run.commit(again), "refuses a commit that is due")
    last = run.claim("other")
    run.require((last.step, last.agents) == (2, (0,)), "does not dispatch what lookahead allows")
    run.require(last.until == 0, "returns more than its lookahead")
    seen_before = again.snapshot.after(run.execution_of(again)).versions
    same = all(version in seen_before for version in last.snapshot.versions)
    run.require(same, "does not show the effects of agents that are ahead, by step")
    run.require(run.commit(last), "refuses a commit that is due")
    run.require(run.store.claim("first", LEASE_S) is None, "dispatches more than lookahead allows")


def _shown(what: StateSnapshot) -> tuple[object, ...]:
    versions = sorted(what.versions, key=lambda version: version[1].name)
    later = sorted(what.later_versions, key=lambda version: version[:2])
    return versions, later, list(what.events), list(what.later_events)


def _check_acknowledgements(run: CheckedRun) -> None:
    store = run.store
    run.require(store.acknowledgements("0", 0.01) == [], "acknowledges without a commit")
    run.step(0, 1, 0)
    every = store.acknowledgements("0", LEASE_S)
    done = [(a.execution.step, a.execution.agents) for a in every]
    run.require(done == [(0, (0,)), (0, (1,)), (1, (0,))], f"acknowledges {done}")
    first, second, third = every
    run.require(first.execution.actions == {"ann": 0}, "forgets actions")
    run.require(
        third.execution.writes["letter/ann/0"] is None
        and third.execution.writes["ann"] == Entity("ann", (0, 1), AGENT, {"at": 2})
        and [event["verse"] for event in third.execution.events] == [0, 1],
        "forgets what was written",
    )
    run.require(store.acknowledgements(first.id, 0, 1) == [second], "does not continue after an id")
    run.require(store.nodes().last_id == third.id, "does not know its last acknowledgement")
    run.require(store.acknowledgements(third.id, 0.01) == [], "acknowledges twice")
    store.collect(run.fence, 1)
    run.require(store.acknowledgements("0", 0) == [third], "keeps acknowledgements it should drop")
    run.refuses(
        StoreError,
        "does not report that it has lost commits",
        lambda: store.acknowledgements(f"9{third.id}", 0),
    )


def _check_answers(run: CheckedRun) -> None:
    key, answer = Key(0, 0, "plan", "digest", 1), Completion("walk", 3, 1, "stop")
    run.dispatch((0, (0,)))
    lost = run.claim("first", 0)
    for buyer in ("", "", "other", "other"):  # the reply to the first was lost
        run.store.keep_answer(key, answer, buyer)
    again = run.claim("other")
    run.require(not lost.answers and again.answers == {key: answer}, "loses an answer")
    later = Key(1, 2, "plan", "digest", 1)
    run.store.keep_answer(later, answer, "other")
    run.require(
        run.store.answers([0, 2]) == {key: answer, later: answer} and not run.store.answers([1]),
        "does not return the answers of some steps",
    )
    run.require(run.commit(again), "refuses a commit that is due")
    run.store.keep_answer(key, answer)
    run.dispatch((1, (0,)))
    second = run.claim()
    run.require(not second.answers, "gives the answers of a step to the next one")
    run.store.keep_answer(key, answer, "third")
    for _ in range(2):  # the reply to the first was lost
        run.require(run.commit(second, {Key(0, 1, "eat", "", 0): answer}), "refuses a commit")
    run.store.collect(run.fence, 1)
    run.store.keep_answer(key, answer)
    run.require(
        run.store.bought()
        == [
            Purchases("", "eat", 1, 3, 1),
            Purchases("", "plan", 2, 6, 2),
            Purchases("other", "plan", 2, 6, 2),
            Purchases("third", "plan", 1, 3, 1),
        ],
        f"does not count what was bought: {run.store.bought()}",
    )


def _check_world(run: CheckedRun) -> None:
    run.step(0, 1, 2, 3, 0, 1, 2, 3, 0)
    for released in (False, True):
        entities, events = run.store.world(2)
        run.require(
            [entity.name for entity in entities]
            == sorted([*AGENTS, *(f"letter/{name}/1" for name in AGENTS), "well"]),
            f"has a world of {[entity.name for entity in entities]}",
        )
        run.require(
            {entity["at"] for entity in entities if entity.kind == AGENT} == {2}
            and [event.source for event in events] == sorted(2 * AGENTS),
            "mixes the worlds of two steps",
        )
        if not released:
            run.store.collect(run.fence, 2)


def _check_kept_minds(run: CheckedRun) -> None:
    run.step(0)
    run.require(not run.store.keep_minds(run.fence, 1), "keeps minds of a step that has begun")
    run.require(run.store.keep_minds(run.fence, 2), "keeps no minds")
    run.step(0, 0)
    run.require(
        run.store.kept_minds() == {0: {"by": "first", "step": 2}}, "keeps minds of other steps"
    )


def _check_inspection(run: CheckedRun) -> None:
    run.dispatch((0, (0,)), (0, (2, 3)))
    run.store.dispatch(run.fence, [], {1: 0, 3: 0, 2: None}, 0)
    run.store.dispatch(run.fence, [], {3: None}, 0)
    run.claim("third")
    about = run.store.inspect()
    run.require(about.blocked_by == {1: 0}, f"has edges {dict(about.blocked_by)}")
    run.require(list(about.steps) == [0] * 4, f"has agents at {list(about.steps)}")
    run.require(
        [q.agents for q in about.ready] == [(2, 3)]
        and [(q.agents, q.worker) for q in about.claimed] == [((0,), "third")],
        "does not show its queues",
    )
    run.store.set_last_step(run.fence, 2000)
    ends = run.store.info().last_step, run.store.inspect().info.last_step
    run.require(ends == (2000, 2000), f"shows the ends {ends} of a run that ends at 2000")
    run.require(about.holder == "the check" and about.lease_left_s > 0, "does not show its holder")
    run.store.release_lease(run.fence)
    about = run.store.inspect()
    run.require(about.holder is None and about.lease_left_s == 0, "shows a holder that has left")


def _check_memory(run: CheckedRun) -> None:
    """Measured after queues and dictionaries have reached their size."""
    sizes = []
    for step in range(48):
        run.store.keep_answer(Key(0, step, "plan", "", 0), Completion("x" * 200, 1, 1, "stop"))
        run.step(0, 1, 2, 3)
        run.store.collect(run.fence, step)
        sizes.append(run.store.inspect().memory_bytes)
    early, late = max(sizes[8:24]), max(sizes[32:])
    run.require(late <= 1.1 * early, f"grows with steps, from {early:,} to {late:,} bytes")


def _check_finality(run: CheckedRun) -> None:
    run.step(0)
    run.refuses(StoreError, "retracts what is final", run.store.retract, run.fence, 0, 0)


CHECKS = (
    _check_finality,
    _check_fencing,
    _check_order,
    _check_affinity,
    _check_several,
    _check_minds,
    _check_slice,
    _check_commits,
    _check_lookahead,
    *LATE_COMMIT_CHECKS,
    _check_acknowledgements,
    _check_answers,
    _check_world,
    _check_kept_minds,
    _check_inspection,
    _check_memory,
)
