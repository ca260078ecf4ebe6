"""The controller as a specification: brute force over every pair after every event.

An agent is *waiting* (not yet dispatched at its step), *running* (dispatched) or *finished* (at the
target step). Its position is the one at the beginning of its step. A cluster is a connected
component of coupled waiting agents at the same step. It is dispatched when no member is blocked and
none is coupled with a running agent (which the rules exclude while no agent moves faster than
`max_velocity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from metropolis.controller.base import NO_AGENT, InvariantError
from metropolis.names import format_position
from metropolis.rules.metrics import Metric
from metropolis.rules.rules import ROUNDING, Rule
from metropolis.types import AgentId, Commit, Dispatch, MetropolisError, Position, Step


class ReferenceController:
    """See `metropolis.controller.base.Controller`."""

    def __init__(
        self,
        rule: Rule,
        metric: Metric,
        max_velocity: float,
        positions: Sequence[Position],
        target_step: Step,
        *,
        check_moves: bool = True,
        steps: Sequence[Step] = (),
    ) -> None:
        """Agent i starts at `positions[i]` before `steps[i]` and stops before `target_step`.

        Without `steps` all agents start before step 0. Steps and positions of an earlier controller
        make one that continues it: it starts with the clusters that were running.

        Without `check_moves` agents may jump further than `max_velocity`; the rules then guarantee
        causality only between agents that did not meet across a jump. `validate` compares no
        positions until all agents have passed the highest step at the last jump.
        """
        check_start(metric, max_velocity, positions, target_step)
        self._rule, self._metric, self._max_velocity = rule, metric, max_velocity
        self._check_moves = check_moves
        self._jump_step: Step = -1  # highest step at the last jump
        self._target = target_step
        self._at = list(positions)
        self._step: list[Step] = list(steps) or [0] * len(positions)
        self._running: dict[AgentId, tuple[AgentId, ...]] = {}
        self._has_started = False

    def start(self) -> list[Dispatch]:
        """See `Controller.start`."""
        if self._has_started:
            raise MetropolisError("the controller has been started before")
        self._has_started = True
        return self._dispatch_ready()

    def handle(self, commits: Sequence[Commit]) -> list[Dispatch]:
        """See `Controller.handle`."""
        for commit in commits:
            has_jumped = self._check(commit)
            for agent, position in zip(commit.agents, commit.positions, strict=True):
                del self._running[agent]
                self._at[agent] = position
                self._step[agent] += 1
            if has_jumped:
                self._jump_step = max(self._step)
        return self._dispatch_ready()

    def blocked_by(self) -> npt.NDArray[np.int32]:
        """See `Controller.blocked_by`."""
        edges = np.full(len(self._step), NO_AGENT, np.int32)
        for cluster in self._clusters():
            blockers = {a: b for a in cluster if (b := self._blocker(a)) is not None}
            companion = next(iter(blockers))
            for a in cluster:
                edges[a] = blockers.get(a, companion)
        return edges

    def clear_until(self, agent: AgentId) -> Step:  # noqa: ARG002
        """See `Controller.clear_until`; always 0 here."""
        return 0

    @property
    def floor(self) -> Step:
        """See `Controller.floor`."""
        return min(self._step, default=self._target)

    @property
    def finished(self) -> bool:
        """See `Controller.finished`."""
        return self.floor == self._target

    def coupled(self, a: AgentId, b: AgentId) -> bool:
        """Whether a and b must run their step together."""
        radius = self._rule.couple_radius
        return self._step[a] == self._step[b] and self._within(a, b, radius, 0)

    def blocked(self, a: AgentId, b: AgentId) -> bool:
        """Whether a must wait for b to finish its step."""
        k = self._step[a] - self._step[b]
        return k > 0 and self._within(a, b, self._rule.block_radius, k * self._max_velocity)

    def validate(self) -> None:
        """See `Controller.validate`."""
        if self.floor > self._jump_step:
            self._check_pairs()
        if any(self._is_ready(cluster) for cluster in self._clusters()):
            raise InvariantError("a cluster that can run has not been dispatched")
        if not self._running and not self.finished:
            raise InvariantError("no agent runs and not all have finished")

    def _check_pairs(self) -> None:
        agents = range(len(self._step))
        for a in agents:
            for b in agents:
                k = self._step[a] - self._step[b]
                if a in self._running and self.blocked(a, b):
                    raise InvariantError(f"agent {a} is running although {b} blocks it")
                if a in self._running and a != b and self.coupled(a, b):
                    together = b in self._running[a]
                    if not together:
                        raise InvariantError(f"agents {a} and {b} are coupled but run apart")
                if k > 0 and self._too_close(a, b, k):
                    raise InvariantError(f"agent {a} is {k} steps ahead of {b} and too close to it")

    def _too_close(self, a: AgentId, b: AgentId, k: int) -> bool:
        """Whether a is k steps ahead of b although it should have waited or run together with b.

        a was not blocked when k - 1 steps ahead (not coupled, for k = 1), and has moved at most v,
        with the error of rounding if v is no whole number.
        """
        radius = self._rule.couple_radius if k == 1 else self._rule.block_radius
        radius -= self._max_velocity + (0 if self._max_velocity % 1 == 0 else ROUNDING)
        if not self._metric.uniform:
            return self._metric.perceives(self._at[a], self._at[b], radius)
        return self._within(a, b, radius, (k - 1) * self._max_velocity)

    def _within(self, p: AgentId, q: AgentId, radius: float, reach: float) -> bool:
        return self._metric.within(self._at[p], self._at[q], radius, reach)

    def _dispatch_ready(self) -> list[Dispatch]:
        ready = [cluster for cluster in self._clusters() if self._is_ready(cluster)]
        for cluster in ready:
            self._running.update(dict.fromkeys(cluster, cluster))
        return sorted(
            (Dispatch(self._step[cluster[0]], cluster) for cluster in ready),
            key=lambda dispatch: (dispatch.step, dispatch.agents),
        )

    def _clusters(self) -> Iterator[tuple[AgentId, ...]]:
        """Connected components of coupled waiting agents."""
        unseen = {
            a for a, step in enumerate(self._step) if step < self._target and a not in self._running
        }
        while unseen:
            frontier = [unseen.pop()]
            cluster = list(frontier)
            while frontier:
                a = frontier.pop()
                joined = [b for b in unseen if self.coupled(a, b)]
                unseen.difference_update(joined)
                frontier += joined
                cluster += joined
            yield tuple(sorted(cluster))

    def _is_ready(self, cluster: tuple[AgentId, ...]) -> bool:
        return all(self._blocker(a) is None for a in cluster)

    def _blocker(self, a: AgentId) -> AgentId | None:
        """The first agent that the waiting agent `a` must wait for."""
        for b in range(len(self._step)):
            if self.blocked(a, b) or (b in self._running and self.coupled(a, b)):
                return b
        return None

    def _check(self, commit: Commit) -> bool:
        """Whether an agent jumps; raises MetropolisError on a commit that is refused."""
        check_shape(commit)
        for agent in commit.agents:
            if agent not in self._running:
                raise MetropolisError(
                    f"agent {agent} is not running; commit exactly what was dispatched"
                )
        cluster = self._running[commit.agents[0]]
        if commit.agents != cluster:
            raise MetropolisError(
                f"agent {commit.agents[0]} was dispatched in the cluster {format_agents(cluster)} "
                f"and committed in {format_agents(commit.agents)}; commit exactly what was "
                "dispatched"
            )
        has_jumped = False
        for agent, position in zip(commit.agents, commit.positions, strict=True):
            check_position(self._metric, agent, position)
            if self._metric.within(self._at[agent], position, 0, self._max_velocity):
                continue
            if self._check_moves:
                raise MetropolisError(
                    f"agent {agent} moved from {format_position(self._at[agent])} "
                    f"to {format_position(position)} "
                    f"at step {self._step[agent]}, further than the velocity {self._max_velocity:g}"
                )
            has_jumped = True
        return has_jumped


def format_agents(agents: Sequence[AgentId]) -> str:
    """`agents` as text, like "1, 2, 5"."""
    return ", ".join(map(str, agents))


def check_position(metric: Metric, agent: AgentId, position: Position) -> None:
    """Raise MetropolisError when no agent can stand at `position`."""
    flaw = metric.flaw(position)
    if flaw is not None:
        raise MetropolisError(f"agent {agent} cannot stand at {format_position(position)}: {flaw}")


def check_shape(commit: Commit) -> None:
    """Raise MetropolisError on a commit that is empty or has a wrong number of positions."""
    if not commit.agents or len(commit.agents) != len(commit.positions):
        raise MetropolisError(
            f"a commit of {len(commit.agents)} agents carries {len(commit.positions)} positions; "
            "it needs at least one agent and one position for each"
        )


def check_start(
    metric: Metric, max_velocity: float, positions: Sequence[Position], target_step: Step
) -> None:
    """Raise MetropolisError when the parameters of a run are invalid."""
    if not 0 <= max_velocity < float("inf"):
        raise MetropolisError(f"the velocity is {max_velocity:g}; it must be finite and >= 0")
    if target_step < 0:
        raise MetropolisError(f"the target step is {target_step}; it must be >= 0")
    for agent, position in enumerate(positions):
        check_position(metric, agent, position)
