"""Agent-steps as programs, in runs and in their replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metropolis.types import AgentId, Step


@dataclass(slots=True)
class AgentProgram:
    """An agent-step that has sent a call and has not ended."""

    name: str
    agent: AgentId
    arrived_sim_s: float
    open: int = 0
    """Number of its calls that have not ended."""


class AgentPrograms:
    """The programs of a run's agents.

    A program ends with the agent's first call in another step, or with its last open call if that
    is later: a run does not know which call of a step is the last one.
    """

    def __init__(self, program_ended: Callable[[str], None]) -> None:
        """`program_ended` is called with the name of each program that ends."""
        self._program_ended = program_ended
        self._programs: dict[str, AgentProgram] = {}
        self._latest: dict[AgentId, AgentProgram] = {}
        """The program of each agent's latest call."""
        self._of_call: dict[int, AgentProgram] = {}
        """Open call -> its program."""

    def sent(self, call: int, agent: AgentId, step: Step, now_sim_s: float) -> AgentProgram:
        """The program of a call that is sent now."""
        name = f"{agent} at {step}"
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = AgentProgram(name, agent, now_sim_s)
        before = self._latest.get(agent, program)
        self._latest[agent] = self._of_call[call] = program
        program.open += 1
        self._end_if_over(before)
        return program

    def left(self, call: int) -> None:
        """A call was completed or aborted."""
        program = self._of_call.pop(call)
        program.open -= 1
        self._end_if_over(program)

    def _end_if_over(self, program: AgentProgram) -> None:
        if not program.open and self._latest[program.agent] is not program:
            del self._programs[program.name]
            self._program_ended(program.name)
