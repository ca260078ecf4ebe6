"""Checks of `Controller.clear_until`: a clear agent continues alone, at once."""

from __future__ import annotations

from collections.abc import Sequence

from metropolis.controller.base import Controller
from metropolis.types import AgentId, Commit, Dispatch, Step


class Lookahead:
    """Compares the lookahead of one controller with its commands."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._clear_until: dict[AgentId, Step] = {}
        self.clear_steps = 0
        """Number of steps for which agents were clear."""

    def check(self, commits: Sequence[Commit], commands: Sequence[Dispatch]) -> None:
        """Check `commands`, which the controller returned for `commits`."""
        stepped = {agent for commit in commits for agent in commit.agents}
        for agent, until in list(self._clear_until.items()):
            together = [one for one in commands if agent in one.agents]
            assert all(one.agents == (agent,) for one in together), (agent, until, commands)
            if agent in stepped:
                assert together, (agent, until, commands)
            if any(one.step + 1 >= until for one in together):
                del self._clear_until[agent]
        for one in commands:
            if len(one.agents) > 1 or one.agents[0] in self._clear_until:
                continue
            until = self._controller.clear_until(one.agents[0])
            if until > one.step + 1:
                self._clear_until[one.agents[0]] = until
                self.clear_steps += until - one.step - 1
