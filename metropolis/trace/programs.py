"""Programs: tasks that users of agentic applications send to a serving system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from metropolis.types import MetropolisError

Text = tuple[int, int]
"""A piece of a prompt: its id and its tokens. Prompts share tokens up to their first difference."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a program; it is sent when its parents have completed."""

    function: str
    prompt_tokens: int
    output_tokens: int
    parents: tuple[int, ...] = ()
    """Indices of earlier calls of the program."""
    stages_left: int | None = None
    """Remaining stages of the application's plan, including this one; without branches and loops
    that depend on answers. None: there is no plan."""
    prefix: tuple[Text, ...] = ()
    """The beginning of the prompt; no other prompt shares the rest."""
    answer_text: int | None = None
    """The id of its answer, for later prompts that repeat it; `prefix` is then the whole prompt."""
    model: str | None = None
    """The model that must serve it; None: any."""
    delay_s: float = 0.0
    """Time between the completion of its parents, or the program's arrival, and its sending: a tool
    that runs or a user who reads."""


@dataclass(frozen=True, slots=True)
class Program:
    """A task: a directed acyclic graph of calls."""

    name: str
    arrival_s: float
    calls: tuple[PlannedCall, ...]

    def __post_init__(self) -> None:
        for index, call in enumerate(self.calls):
            if call.prompt_tokens < 1 or call.output_tokens < 1:
                raise MetropolisError(f"program {self.name!r}, call {index}: has no tokens")
            if not 0 <= call.delay_s < inf:
                raise MetropolisError(
                    f"program {self.name!r}, call {index}: delay_s is {call.delay_s}; it should be "
                    "a number of seconds from 0 on"
                )
            prefix_tokens = sum(tokens for _, tokens in call.prefix)
            if prefix_tokens > call.prompt_tokens:
                raise MetropolisError(
                    f"program {self.name!r}, call {index}: its prefix has {prefix_tokens} tokens, "
                    f"its prompt {call.prompt_tokens}"
                )
            if any(not 0 <= parent < index for parent in call.parents):
                raise MetropolisError(
                    f"program {self.name!r}, call {index}: a parent must be an earlier call"
                )

    @property
    def output_tokens(self) -> int:
        """Output tokens of all calls."""
        return sum(call.output_tokens for call in self.calls)


def by_arrival(programs: Sequence[Program]) -> list[Program]:
    """The programs in the order of their arrival."""
    return sorted(programs, key=lambda program: (program.arrival_s, program.name))
