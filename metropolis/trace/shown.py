"""What agents show in a trace: changes of activity, and of the conversation that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metropolis.types import AgentId, Step
from metropolis.world.appearance import Look

Lines = tuple[tuple[str, str], ...]
"""(speaker, text) of each line of a conversation."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an agent shows from the beginning of `step` to its next change."""

    step: Step
    agent: AgentId
    look: Look
    lines: Lines = ()
    """The lines of the conversation that it holds."""


def window(shown: Sequence[Shown], first: Step, last: Step) -> tuple[Shown, ...]:
    """The changes in the steps [first, last), after what is shown at `first`."""
    at_first: dict[AgentId, Shown] = {}
    later = []
    for change in shown:
        if change.step <= first:
            at_first[change.agent] = replace(change, step=0)
        elif change.step < last:
            later.append(replace(change, step=change.step - first))
    return (*(at_first[agent] for agent in sorted(at_first)), *later)


def activities(shown: Sequence[Shown]) -> int:
    """The number of changes of looks after step 0."""
    before: dict[AgentId, Look] = {}
    count = 0
    for change in shown:
        if change.step > 0 and before.get(change.agent) != change.look:
            count += 1
        before[change.agent] = change.look
    return count


def conversations(shown: Sequence[Shown]) -> int:
    """The number of conversations: equal lines that begin in one step are one."""
    before: dict[AgentId, Lines] = {}
    begun = set()
    for change in shown:
        if change.lines and before.get(change.agent) != change.lines:
            begun.add((change.step, change.lines))
        before[change.agent] = change.lines
    return len(begun)
