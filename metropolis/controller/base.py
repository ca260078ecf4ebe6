"""The controller's protocol: events in, commands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from metropolis.types import AgentId, Commit, Dispatch, Step

NOBODY = -1
"""In place of an agent, in `Controller.blocked_by`."""


class InvariantError(AssertionError):
    """A controller's state contradicts its rules: a fault of the controller, never of the input."""


class Controller(Protocol):
    """A pure state machine: no clock, thread, socket or randomness.

    Commands of one call are sorted by (step, smallest agent). Which clusters are dispatched does
    not depend on the order of commits within a call. A refused commit changes nothing; those
    before it in the call stand, and their commands come with the next call.
    """

    def start(self) -> list[Dispatch]:
        """The clusters that can run at the very beginning. Called once."""

    def handle(self, commits: Sequence[Commit]) -> list[Dispatch]:
        """Takes finished clusters, returns the clusters that can run because of them.

        Raises MetropolisError on an agent that is not running, members that are not exactly a
        dispatched cluster, and a move no agent can make.
        """

    def blocked_by(self) -> npt.NDArray[np.int32]:
        """(agents,): whom each waits for, NOBODY for those that run or have finished.

        To be asked after `start`. Of the agents that block it, at an earlier step as a rule, one
        is named. Who is blocked by nobody, but coupled with others that are, shows one of these: a
        member of its own cluster, at its own step. So whoever goes from agent to agent comes to
        one that runs. Takes time in proportion to the agents.
        """

    def clear_until(self, agent: AgentId) -> Step:
        """The step up to which `agent`, which runs alone, can go on alone, whatever others do.

        Until it has committed all steps below that one, nobody will block it or be coupled with it:
        it is dispatched alone, at once, by each of its commits. So it need not ask: the lookahead
        of conservative simulation. A step that is known to be safe, not the last that is; 0 where
        none is known. To be asked after `start`.
        """

    @property
    def floor(self) -> Step:
        """The smallest step any agent still has to run; the target step when all have finished."""

    @property
    def finished(self) -> bool:
        """Whether every agent has committed its last step."""

    def validate(self) -> None:
        """Checks every invariant; raises InvariantError naming the agents. For tests: slow."""
