"""A small world for store tests: agents on a line that step up and down."""

from __future__ import annotations

from metropolis.store.base import RunInfo, Store
from metropolis.store.claim import Claim
from metropolis.store.execution import Execution
from metropolis.types import Dispatch
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.parts import to_parts

LEASE_S = 600.0


def begin(store: Store, agents: int) -> int:
    """Create a run; return the fence of its lease, which has expired."""
    names = tuple(f"a{i}" for i in range(agents))
    info = RunInfo("line", 1, names, 0, 10_000, "chebyshev", 2.0)
    bodies = [Entity(name, (10 * i, 0), AGENT) for i, name in enumerate(names)]
    store.begin(info, bodies, {i: {"step": 0, "load": ""} for i in range(agents)})
    return store.take_lease("test", 0)


def dispatch(store: Store, fence: int, step: int, *agents: int) -> None:
    store.dispatch(fence, [Dispatch(step, agents)], {}, 0)


def claimed(store: Store, worker: str = "test", lease_s: float = LEASE_S) -> Claim:
    claim = store.claim(worker, lease_s)
    assert claim is not None
    return claim


def execution_of(claim: Claim, load: str = "") -> Execution:
    """All agents move, and sing a text as long as `load`."""
    bodies = {f"a{i}": (10 * i, (claim.step + 1) % 2) for i in claim.agents}
    writes = {name: Entity(name, at, AGENT, {"by": claim.worker}) for name, at in bodies.items()}
    events = [Event(claim.step, name, at, "sang", {"what": load}) for name, at in bodies.items()]
    actions, minds = dict.fromkeys(bodies, claim.worker), minds_of(claim, load)
    return Execution(claim.step, claim.agents, actions, writes, events, {}, minds)


def commit(store: Store, claim: Claim, load: str = "") -> bool:
    return store.commit(claim, execution_of(claim, load))


def minds_of(claim: Claim, load: str = "") -> dict[int, dict[str, bytes]]:
    mind = {"step": claim.step + 1, "load": load}
    return {agent: to_parts(mind) for agent in claim.agents}
