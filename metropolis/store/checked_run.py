"""A run for conformance tests of stores, with the calls of a worker and a controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metropolis.store.base import RunInfo, Store
from metropolis.store.claim import Claim
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.types import AgentId, Dispatch, MetropolisError, Step
from metropolis.world.entities import AGENT, Entity, Event
from metropolis.world.parts import to_parts

AGENTS = ("ann", "bob", "cem", "dee")
INFO = RunInfo("line", 1, AGENTS, 0, 1000, "chebyshev", 2.0)
FIRST_MIND = {"by": None, "step": 0}
LEASE_S = 600.0


def require(subject: object, holds: bool, violation: str) -> None:
    """Raise MetropolisError, which names the class of `subject`, unless `holds`."""
    if not holds:
        raise MetropolisError(f"{type(subject).__name__} {violation}")


def refuses(
    subject: object, kind: type[Exception], what: str, act: Callable[..., Any], *arguments: Any
) -> None:
    """Raise MetropolisError, which names the class of `subject`, unless `act` raises `kind`."""
    try:
        act(*arguments)
    except kind:
        return
    require(subject, False, f"{what}; it should raise {kind.__name__}")


@dataclass
class CheckedRun:
    """The run of a check, and its lease."""

    store: Store
    fence: int

    def require(self, holds: bool, violation: str) -> None:
        """Raise MetropolisError, which names the store, unless `holds`."""
        require(self.store, holds, violation)

    def refuses(
        self, kind: type[Exception], what: str, act: Callable[..., Any], *arguments: Any
    ) -> None:
        """Raise MetropolisError, which names the store, unless `act` raises `kind`."""
        refuses(self.store, kind, what, act, *arguments)

    def dispatch(self, *clusters: tuple[Step, tuple[AgentId, ...]]) -> None:
        """Dispatch clusters, without edges."""
        self.store.dispatch(self.fence, [Dispatch(*cluster) for cluster in clusters], {}, 0)

    def claim(self, worker: str = "first", lease_s: float = LEASE_S, **options: Any) -> Claim:
        """Claim a cluster; one must be ready."""
        claim = self.store.claim(worker, lease_s, **options)
        if claim is None:
            raise MetropolisError(f"{type(self.store).__name__} hands out no cluster that is ready")
        return claim

    def step(self, *agents: AgentId) -> None:
        """Run the next step of each agent: dispatch, claim and commit it."""
        for agent in agents:
            self.dispatch((self.store.nodes().steps[agent], (agent,)))
            self.require(self.commit(self.claim()), "refuses a commit that is due")

    def commit(
        self, claim: Claim, answers: PaidAnswers = NO_ANSWERS, lease_s: float | None = None
    ) -> bool:
        """Commit `execution_of(claim)`."""
        return bool(self.store.commit(claim, self.execution_of(claim), answers, lease_s=lease_s))

    def execution_of(self, claim: Claim) -> Execution:
        """Every member moves up, leaves a letter, removes its previous one, and sings."""
        writes: dict[str, Entity | None] = {}
        for agent in claim.agents:
            name = AGENTS[agent]
            writes[name] = Entity(name, (10 * agent, claim.step % 2), AGENT, {"at": claim.step + 1})
            writes[f"letter/{name}/{claim.step}"] = Entity(
                f"letter/{name}/{claim.step}", (10 * agent, 1), state={"to": [agent, 0.1]}
            )
            if claim.step:
                writes[f"letter/{name}/{claim.step - 1}"] = None
        events = [
            Event(claim.step, AGENTS[agent], (10 * agent, 0), "sang", {"verse": verse})
            for agent in claim.agents
            for verse in range(2)
        ]
        actions = {AGENTS[agent]: claim.step for agent in claim.agents}
        minds = {agent: to_parts(mind) for agent, mind in mind_of(claim).items()}
        return Execution(
            claim.step, claim.agents, actions, writes, events, {}, minds, attempt=claim.number
        )


def mind_of(claim: Claim) -> dict[AgentId, Any]:
    """The members' minds after their step."""
    return {agent: {"by": claim.worker, "step": claim.step + 1} for agent in claim.agents}
