"""Checks of `Controller.blocked_by`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from metropolis.controller.base import NO_AGENT, Controller
from metropolis.controller.reference import ReferenceController


def check_edges(
    controllers: Sequence[Controller], running: Collection[int], finished: Collection[int]
) -> None:
    """Exactly the waiting agents show a blocker, and following the entries ends at a running agent.

    If the first controller is the reference, it also confirms that these agents block them.
    """
    for controller in controllers:
        edges = controller.blocked_by().tolist()
        for agent, other in enumerate(edges):
            assert (other == NO_AGENT) == (agent in running or agent in finished), (agent, edges)
            for _ in edges:
                if other == NO_AGENT or other in running:
                    break
                other = edges[other]
            assert other == NO_AGENT or other in running, edges
        if isinstance(controllers[0], ReferenceController):
            _check_reasons(controllers[0], edges)


def _check_reasons(reference: ReferenceController, edges: list[int]) -> None:
    def blocks(b: int, a: int) -> bool:
        return reference.blocked(a, b) or (edges[b] == NO_AGENT and reference.coupled(a, b))

    for cluster in reference._clusters():
        for a in cluster:
            b = edges[a]
            if any(blocks(other, a) for other in range(len(edges))):
                assert blocks(b, a), (a, b)
            else:
                assert b in cluster, (a, b, cluster)
                assert blocks(edges[b], b), (a, b, edges[b])
