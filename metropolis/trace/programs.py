"""Programs: what users of agentic applications send to a serving system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metropolis.types import MetropolisError

Text = tuple[int, int]
"""A piece of a prompt: which it is, and its tokens. Prompts share tokens up to where they part."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a program; it is sent when its parents have been answered."""

    function: str
    prompt_tokens: int
    output_tokens: int
    parents: tuple[int, ...] = ()
    """Indices of earlier calls of the program."""
    stages_left: int | None = None
    """From here to the end, this one included, as the application's plan has it; branches and loops
    that only the answers decide are not in it. None: there is no plan."""
    prefix: tuple[Text, ...] = ()
    """What its prompt begins with; what lies behind is nobody else's."""
    answer_text: int | None = None
    """Which text its answer is, for later prompts that repeat it; `prefix` is its whole prompt."""


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
            told_tokens = sum(tokens for _, tokens in call.prefix)
            if told_tokens > call.prompt_tokens:
                raise MetropolisError(
                    f"program {self.name!r}, call {index}: its prefix has {told_tokens} tokens, "
                    f"its prompt {call.prompt_tokens}"
                )
            if any(not 0 <= parent < index for parent in call.parents):
                raise MetropolisError(
                    f"program {self.name!r}, call {index}: a parent must be an earlier call"
                )

    @property
    def output_tokens(self) -> int:
        """Of all calls."""
        return sum(call.output_tokens for call in self.calls)


def by_arrival(programs: Sequence[Program]) -> list[Program]:
    """In the order in which they arrive."""
    return sorted(programs, key=lambda program: (program.arrival_s, program.name))
