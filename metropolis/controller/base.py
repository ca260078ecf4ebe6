"""The controller's protocol: events in, commands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from metropolis.types import AgentId, Commit, Dispatch, Step

NO_AGENT = -1
"""No agent, in `Controller.blocked_by`."""


class InvariantError(AssertionError):
    """A controller's state contradicts its rules: a bug of the controller, never bad input."""


class Controller(Protocol):
    """A pure state machine: no clock, thread, socket or randomness.

    Commands of one call are sorted by (step, smallest agent). The order of commits within a call
    does not affect which clusters are dispatched. A refused commit changes nothing; earlier commits
    of the call remain applied, and the next call returns their commands.
    """

    def start(self) -> list[Dispatch]:
        """Return the clusters that can run initially.

        Called once: the second call raises MetropolisError.
        """

    def handle(self, commits: Sequence[Commit]) -> list[Dispatch]:
        """Apply finished clusters and return the clusters that can run because of them.

        Raises MetropolisError on an agent that is not running, members that are not exactly a
        dispatched cluster, and an impossible move.
        """

    def blocked_by(self) -> npt.NDArray[np.int32]:
        """(agents,): the agent that each waits for; NO_AGENT for running and finished agents.

        Call it after `start`. A blocked agent shows one of its blockers, usually at an earlier
        step. An agent that is not blocked itself but coupled with blocked ones shows one of these:
        a member of its own cluster, at its own step. Following the entries therefore ends at a
        running agent. Takes time linear in the number of agents.
        """

    def clear_until(self, agent: AgentId) -> Step:
        """The step up to which `agent`, which runs alone, can continue alone, whatever others do.

        Until it has committed all steps below that one, no agent blocks it or is coupled with it:
        each of its commits dispatches it alone, at once. So it need not consult the controller: the
        lookahead of conservative simulation. The step is a lower bound of the last safe one; 0 if
        none is known. Call it after `start`.
        """

    @property
    def floor(self) -> Step:
        """The smallest step that any agent still has to run; the target step once all finished."""

    @property
    def finished(self) -> bool:
        """Whether every agent has committed its last step."""

    def validate(self) -> None:
        """Check every invariant; raises InvariantError naming the agents. Slow; for tests."""
