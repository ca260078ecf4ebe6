"""Retraction in the memory store; the counterpart of retract.lua."""

from __future__ import annotations

from metropolis.store.base import StoreError
from metropolis.store.run_state import RunState
from metropolis.types import AgentId, Step


def retract(run: RunState, agent: AgentId, step: Step) -> None:
    """See Store.retract."""
    if not run.info.retractable:
        raise StoreError("commits of this run are final; it was not begun as retractable")
    if step < run.released:
        raise StoreError(f"only steps from {run.released} of this run are retractable")
    rolled_back = _retracted_steps(run, agent, step)
    undone: dict[int, Step] = {}
    for member, first in rolled_back.items():
        for each in range(first, run.steps[member]):
            undone[run.before[each][member].number] = each
    for number, each in undone.items():
        execution = run.acks.pop(number).execution
        run.acks_of[each].remove(number)
        sources = {run.info.agents[member] for member in execution.agents}
        run.state.retract(each, execution.writes, sources)
    for member, first in rolled_back.items():
        _roll_back(run, member, first)
    run.counts["retracted"] += len(undone)


def _retracted_steps(run: RunState, agent: AgentId, step: Step) -> dict[AgentId, Step]:
    """The agents that lose commits, and the step to which each is rolled back."""
    first, unseen = {agent: min(step, run.steps[agent])}, [agent]
    while unseen:
        one = unseen.pop()
        for each in range(first[one], run.steps[one]):
            for member in run.acks[run.before[each][one].number].execution.agents:
                if first.get(member, run.steps[member]) > each:
                    first[member] = each
                    unseen.append(member)
    return first


def _roll_back(run: RunState, agent: AgentId, step: Step) -> None:
    """Restore the agent's state before `step`."""
    if step == run.steps[agent]:
        return
    before = run.before[step][agent]
    run.positions[agent], run.minds[agent] = before.position, before.mind
    for each in range(step, run.steps[agent]):
        del run.before[each][agent]
    run.steps[agent] = step
    if agent in run.busy:
        run.withdraw(run.busy[agent])
    for known in (run.homes, run.ahead):
        known.pop(agent, None)
    if run.kept_step is not None and step < run.kept_step:
        run.kept.pop(agent, None)
