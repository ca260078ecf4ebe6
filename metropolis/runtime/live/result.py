"""The result of a live run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from metropolis.llm.usage import Usage
from metropolis.runtime.folder.calls_file import CallTotals
from metropolis.runtime.folder.run_trace import RunTrace
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from metropolis.world.record import StepRecord

INTERRUPTED = "interrupted"
"""`RunResult.stopped` of an interrupted run."""


class Interrupted(MetropolisError):  # noqa: N818 -- the user's request, not an error
    """The run was interrupted."""


@dataclass(frozen=True)
class RunResult:
    """The state of a run so far: everything below `steps` is final."""

    mode: str
    rule: str | None
    seed: int
    agents: int
    steps: int
    stopped: str | None
    """Why the run ended before its last step; None: it did not."""
    history_sha256: str
    """Hash of the lines of the history; `metropolis.verify` compares it with lockstep's."""
    history: Sequence[StepRecord] = field(repr=False)
    """The steps of this run; empty if a folder stores them."""
    calls: int
    prompt_tokens: int
    output_tokens: int
    by_function: Mapping[str, CallTotals]
    """The calls of all steps so far, by function."""
    usage: Mapping[str, Usage]
    """Requests sent since this start, by function; for workers on Ray: calls, tokens and cost."""
    bought: Usage
    """All answers that the run has paid for, in all its starts, committed or not; `lost_tokens`
    covers this start only."""
    simulated: bool
    """Whether LLM latency is virtual time."""
    makespan_s: float
    """On the run's clock: virtual time (sim_s) if simulated, otherwise wall_s."""
    wall_s: float
    recorded: RunTrace = field(repr=False)
    """The trace, not yet assembled."""

    @cached_property
    def trace(self) -> Trace:
        """The trace of all steps so far, for `metropolis replay`; assembled on first access."""
        return self.recorded.assemble()
