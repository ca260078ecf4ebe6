"""Calls generated from movement: the LLM calls of GenAgent, per agent-step.

Each call has a trigger: midnight (plans), a walk or a new activity (action choice), approaching
others and their activities (perception), company (conversations), accumulated perceptions
(reflection). Frequencies are fitted to AI Metropolis §4.1-4.3; see `calibration.toml` and
docs/generator.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from metropolis.trace.generate.calibration import CALIBRATION
from metropolis.trace.generate.call_builder import (
    ACT,
    PERCEIVE,
    PLAN,
    REACT,
    REFLECT,
    TALK,
    CallBuilder,
)
from metropolis.trace.generate.conversations import Conversation, hold
from metropolis.trace.generate.perception import Senses
from metropolis.trace.generate.proximity import life, meetings, of_the_awake, pairs_in_range
from metropolis.trace.schema import Calls, Int64, Trace

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def generate_calls(trace: Trace, seed: int = 0) -> Trace:
    """`trace` with its calls replaced by generated ones.

    Deterministic in (positions, meta, seed). The calls of each hour of the day are proportional to
    the number of agents, if enough of them are awake and meet.
    """
    calls = _Generation(trace, np.random.default_rng(seed)).calls()
    return replace(trace, meta=replace(trace.meta, calls_origin="generated"), calls=calls)


class _Generation:
    """One generation; flat arrays number agent-steps as step * agents + agent."""

    def __init__(self, trace: Trace, rng: np.random.Generator) -> None:
        self.trace, self.rng, self.fit = trace, rng, CALIBRATION
        self.life = life(trace)
        self.pairs = pairs_in_range(trace)
        self.senses = Senses(self.life, meetings(self.pairs), rng, self.fit.perception)
        self.hour = self.life.hour - self.life.hour[0]
        covered = np.bincount(self.hour) * trace.meta.step_s / 3600
        self.of_day = (self.life.hour[0] + np.arange(len(covered))) % 24
        self.share = covered * trace.agents / 25
        self.builder = CallBuilder(self.fit)

    def calls(self) -> Calls:
        """Generate the calls of all agents."""
        self._plan_days()
        occupied = self._converse()
        walks = np.flatnonzero(self.life.walk_start & ~occupied)
        self._act(walks)
        self._decompose(walks)
        perceived = self._perceive(walks, self._silent_changes(occupied))
        self._reflect(perceived)
        return self.builder.lay_out(self.rng)

    def _plan_days(self) -> None:
        seconds = round(self.trace.hour_of_step(0) * 3600)
        midnights = np.flatnonzero(
            (seconds + np.arange(self.trace.steps) * self.trace.meta.step_s) % 86400 == 0
        )
        all_agents = np.arange(self.trace.agents)
        for step in midnights:
            day = "first_day" if step == midnights[0] else "later_day"
            for chain, times in ((day, 1), ("hour_plan", self.fit.day.planned_hours)):
                self.builder.add(
                    PLAN, np.full_like(all_agents, step), all_agents, chain, times=times
                )

    def _converse(self) -> Bools:
        """Generate conversations; returns the occupied agent-steps, (steps, agents)."""
        mean = np.array(self.fit.conversation.per_25_agents)[self.of_day] * self.share
        fit, met = self.fit.conversation, meetings(of_the_awake(self.pairs, self.life))
        held, refused = hold(met, mean, self.hour, self.rng, fit)
        occupied = np.zeros(self.life.moving.shape, np.bool_)
        for talk in held:
            self._talk(talk)
            occupied[talk.first : talk.last, [talk.initiator, talk.partner]] = True
        step, agent = np.array(refused, np.int64).reshape(-1, 2).T
        self.builder.add(REACT, step, agent, "perceive", "talk")
        reacting = self.rng.random(len(step)) < fit.reactions
        self.builder.add(TALK, step[reacting], agent[reacting], "react")
        return occupied

    def _talk(self, talk: Conversation) -> None:
        """Add the whole dialogue to the initiator's step; both agents record its start and end."""
        first, initiator = np.array([talk.first]), np.array([talk.initiator])
        self.builder.add(REACT, first, initiator, "perceive", "talk")
        self.builder.add(TALK, first, initiator, "utterance", times=talk.utterances)
        self.builder.add(TALK, first, initiator, "talk_end")
        both = np.array([talk.initiator, talk.partner])
        self.builder.add(PERCEIVE, np.full(2, talk.first + 1), both, "chat_seen")
        self.builder.add(REFLECT, np.full(2, talk.last - 1), both, "chat_over")

    def _act(self, sites: Int64) -> None:
        """Add the choice of an action at the agent-steps `sites`."""
        self.builder.add(ACT, *np.divmod(sites, self.trace.agents), "action")

    def _decompose(self, sites: Int64) -> None:
        """Add the detailed plan of an hour at an agent's first action choice in it."""
        step, agent = np.divmod(sites, self.trace.agents)
        first = np.unique(agent * len(self.share) + self.hour[step], return_index=True)[1]
        due = first[self.rng.random(len(first)) < self.fit.perception.task_decomp]
        self.builder.add(PLAN, step[due], agent[due], "decompose")

    def _silent_changes(self, occupied: Bools) -> Int64:
        """Agent-steps at which a new activity begins in place, on schedule.

        This is the phase of the 5-minute grid at which most walks of the hour begin.
        """
        grid = self.fit.movement.grid_steps
        phase = np.arange(self.trace.steps) % grid
        starts = np.zeros((len(self.share), grid))
        np.add.at(starts, (self.hour, phase), self.life.walk_start.sum(axis=1))
        on_grid = phase == starts.argmax(axis=1)[self.hour]
        free = on_grid[:, None] & ~self.life.moving & ~self.life.asleep & ~occupied
        sites = np.flatnonzero(free)
        return sites[self.rng.random(len(sites)) < self.fit.perception.silent_change]

    def _perceive(self, walks: Int64, silent: Int64) -> Int64:
        """Add perceptions until each hour has its number of calls; returns them, sorted."""
        fit, senses = self.fit, self.senses
        seen = np.concatenate(
            [
                senses.of_activities(walks),
                senses.of_objects(np.flatnonzero(self.life.arrival & ~self.life.asleep)),
                senses.of_approaches(),
            ]
        )
        reflection = self._reflection_length() / fit.reflection.every_perceptions
        per_site = self.builder.length("action")
        flexible = (1 + reflection) * (
            self._by_hour(seen) + self._by_hour(self._of_silent(silent))
        ) + per_site * self._by_hour(silent)
        noise = self.rng.normal(0, fit.day.hour_sd, len(self.share))
        wanted = np.array(fit.day.calls)[self.of_day] * self.share * np.exp(noise)
        room = np.maximum(wanted - self.builder.count(self.hour, len(wanted)), 0)
        keep = np.divide(room, flexible, out=np.zeros_like(room), where=flexible > room)
        keep[flexible <= room] = 1
        silent, seen = self._thin(silent, keep), self._thin(seen, keep)
        self._act(silent)
        more = senses.of_happenings(np.maximum(room - flexible, 0) / (1 + reflection), self.hour)
        perceived = np.bincount(
            np.concatenate([seen, self._of_silent(silent), more]), minlength=self.life.moving.size
        )
        counts = np.minimum(perceived, fit.perception.most_per_step)
        sites = np.repeat(np.arange(len(counts)), counts)
        step, agent = np.divmod(sites, self.trace.agents)
        self.builder.add(PERCEIVE, step, agent, "perceive")
        return sites

    def _of_silent(self, sites: Int64) -> Int64:
        """Perceptions of activities begun in place: the new activity and its object, together."""
        seen = self.senses.of_activities(sites)
        return np.concatenate(
            [seen, seen[self.rng.random(len(seen)) < self.fit.perception.object_event]]
        )

    def _reflect(self, perceived: Int64) -> None:
        """Add a reflection per `every_perceptions` perceptions, at the step of the last one."""
        fit = self.fit.reflection
        agent = perceived % self.trace.agents
        order = np.argsort(agent, kind="stable")
        perceived, agent = perceived[order], agent[order]
        rank = np.arange(len(agent)) - np.searchsorted(agent, agent)
        share = (rank / fit.every_perceptions + self.rng.random(self.trace.agents)[agent]) % 1
        sites = perceived[share >= 1 - 1 / fit.every_perceptions]
        step, agent = np.divmod(sites, self.trace.agents)
        self.builder.add(REFLECT, step, agent, "reflect")
        low, high = fit.thoughts
        thoughts = self.rng.integers(low, high + 1, (len(sites), fit.focal_points)).sum(axis=1)
        for times in np.unique(thoughts):
            having = thoughts == times
            self.builder.add(REFLECT, step[having], agent[having], "thought", times=int(times))

    def _reflection_length(self) -> float:
        """Mean number of calls of a reflection."""
        fit = self.fit.reflection
        thoughts = sum(fit.thoughts) / 2 * fit.focal_points
        return self.builder.length("reflect") + thoughts * self.builder.length("thought")

    def _by_hour(self, sites: Int64) -> Floats:
        hours = self.hour[sites // self.trace.agents]
        return np.bincount(hours, minlength=len(self.share)).astype(np.float64)

    def _thin(self, sites: Int64, keep: Floats) -> Int64:
        chance = keep[self.hour[sites // self.trace.agents]]
        kept: Int64 = sites[self.rng.random(len(sites)) < chance]
        return kept
