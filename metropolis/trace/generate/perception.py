"""New perceptions of agents: their own activities, others' in range, and agents they approach."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis.trace.generate.calibration import PerceptionFit
from metropolis.trace.generate.proximity import Life, Meetings
from metropolis.trace.order import ranges
from metropolis.trace.schema import Int64

Floats = npt.NDArray[np.float64]


class Senses:
    """Perceptions of all agents; an agent-step is one number, step * agents + agent."""

    def __init__(
        self, life: Life, met: Meetings, rng: np.random.Generator, fit: PerceptionFit
    ) -> None:
        self.life, self.rng, self.fit = life, rng, fit
        self.steps, self.agents = life.moving.shape
        self.awake = ~life.asleep.ravel()
        # Both directions: `seer` perceives `seen`; sleeping agents perceive nothing.
        a, b = met.step * self.agents + met.a, met.step * self.agents + met.b
        seen, seer = np.concatenate([a, b]), np.concatenate([b, a])
        came = np.tile((met.step == met.first) & (met.step > 0), 2)
        wakeful = self.awake[seer]
        self.seen, self.seer, self.came = seen[wakeful], seer[wakeful], came[wakeful]
        order = np.argsort(self.seen, kind="stable")
        self.seen, self.seer, self.came = self.seen[order], self.seer[order], self.came[order]

    def of_activities(self, sites: Int64) -> Int64:
        """Agent-steps that perceive new activities, which begin at the agent-steps `sites`."""
        shown = self._next(sites)
        return np.concatenate([shown, self._witnesses(shown, self.fit.neighbour_event)])

    def of_objects(self, sites: Int64) -> Int64:
        """Agent-steps that perceive objects whose use begins at the agent-steps `sites`."""
        used = sites[self.rng.random(len(sites)) < self.fit.object_event]
        return np.concatenate([used, self._witnesses(used, self.fit.neighbour_event)])

    def of_approaches(self) -> Int64:
        """Agent-steps that perceive an agent they have approached, and the object in use there."""
        seer = self.seer[self.came]
        return np.concatenate([seer, seer[self.rng.random(len(seer)) < self.fit.approach_object]])

    def of_happenings(self, wanted: Floats, hour: Int64) -> Int64:
        """Agent-steps that perceive other events: `wanted` per hour, if enough agents are awake.

        The events happen at agents that are awake, more often on walks, and all agents in range may
        perceive them at once. `hour` is the hour of each step.
        """
        fit = self.fit
        weight = self.awake * (1 + fit.walking_weight * self.life.moving.ravel())
        noticing = 1 + fit.neighbour_event * np.bincount(self.seen, minlength=weight.size)
        hours = np.repeat(hour, self.agents)
        sizes = np.arange(1, len(fit.group_share) + 1)
        total = np.bincount(hours, weight * noticing, len(wanted)) * (sizes @ fit.group_share)
        rate = np.divide(wanted, total, out=np.zeros_like(wanted), where=total > 0)
        chance = np.minimum(rate[hours] * weight, fit.most_rate)
        sites = np.flatnonzero(self.rng.random(weight.size) < chance)
        seer = np.concatenate([sites, self._witnesses(sites, fit.neighbour_event)])
        return np.repeat(seer, self.rng.choice(sizes, len(seer), p=fit.group_share))

    def _next(self, sites: Int64) -> Int64:
        """The agents of `sites` a step later, when they perceive their own activity if awake."""
        later: Int64 = sites[sites < (self.steps - 1) * self.agents] + self.agents
        return later[self.awake[later]]

    def _witnesses(self, shown: Int64, share: float) -> Int64:
        low, high = np.searchsorted(self.seen, shown), np.searchsorted(self.seen, shown, "right")
        seer: Int64 = self.seer[ranges(low, high - low)]
        return seer[self.rng.random(len(seer)) < share]
