"""What a live run comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from metropolis.llm.usage import Usage
from metropolis.runtime.calls_file import Used
from metropolis.runtime.run_trace import RunTrace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from metropolis.world.record import StepRecord

INTERRUPTED = "interrupted"
"""Why a run has stopped that was asked to."""


class Interrupted(MetropolisError):  # noqa: N818 -- what the user wished is no error
    """The run was asked to end."""


@dataclass(frozen=True)
class RunResult:
    """A run as far as it has come: everything below `steps` is final."""

    mode: str
    rule: str | None
    seed: int
    agents: int
    steps: int
    stopped: str | None
    """Why it ended before its last step; None: it did not."""
    history_sha256: str
    """Of the history's lines; `metropolis.verify` compares them with lockstep's."""
    history: Sequence[StepRecord] = field(repr=False)
    """The steps of this run; empty when a folder keeps them."""
    calls: int
    prompt_tokens: int
    output_tokens: int
    used: Mapping[str, Used]
    """By function: of all steps so far."""
    usage: Mapping[str, Usage]
    """By function: what was sent since this start; of workers on Ray calls, tokens and cost."""
    bought: Usage
    """All answers that the run has paid for, in all its starts, committed or not; `lost_tokens` are
    of this start."""
    simulated: bool
    """Whether LLM latency is virtual time."""
    makespan_s: float
    """Of the run's clock: virtual time (sim_s) if simulated, otherwise wall_s."""
    wall_s: float
    recorded: RunTrace = field(repr=False)
    """The trace, not made yet."""

    @cached_property
    def trace(self) -> Trace:
        """Of all steps so far; `metropolis replay` replays it. Made when it is asked for."""
        return self.recorded.whole()
