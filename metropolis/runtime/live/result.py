"""The result of a live run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from metropolis.llm.usage import Usage
from metropolis.notebook.card import card, figure, listed
from metropolis.notebook.chart import BINS, draw_chart
from metropolis.runtime.folder.calls_file import CallTotals
from metropolis.runtime.folder.run_trace import RunTrace
from metropolis.timeline.derived import sum_over_time
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError
from metropolis.world.record import StepRecord

INTERRUPTED = "interrupted"
"""`RunResult.stopped` of an interrupted run."""
DRAWN_CALLS_MAX = 20_000
"""The most calls of a run of which notebooks show a chart: they are read from its files."""


class Interrupted(MetropolisError):  # noqa: N818 -- the user's request, not an error
    """The run was interrupted."""


@dataclass(frozen=True, eq=False)  # arrays are not equal or unequal as a whole
class RunResult:
    """The state of a run so far: everything below `steps` is final."""

    mode: str
    rule: str | None
    seed: int
    agents: int
    steps: int
    stopped: str | None
    """The reason why the run ended before its last step; None: it reached its last step."""
    history_sha256: str
    """Hash of the lines of the history; `metropolis.verify` compares it with lockstep's."""
    history: Sequence[StepRecord] = field(repr=False)
    """The steps of this run; empty if a folder stores them."""
    calls: int
    """Answered calls of all steps so far; the next three fields are their tokens and functions."""
    prompt_tokens: int
    output_tokens: int
    by_function: Mapping[str, CallTotals]
    usage: Mapping[str, Usage]
    """Function -> its calls since this start. With workers on Ray only calls, tokens and cost are
    known."""
    bought: Usage
    """All purchases of the run in all its starts, committed or not. `lost_tokens` excludes calls
    that were in flight when a process was killed, and earlier starts on Ray."""
    simulated: bool
    """Whether LLM latency is virtual time."""
    makespan_s: float
    """Duration on the run's clock: virtual time (sim_s) if `simulated`, otherwise wall time."""
    wall_s: float
    """Wall time of this start."""
    resumed: bool
    """Whether this start has continued the run. Then `makespan_s` may lack the time of answers that
    were known before; in a store it includes the time between the starts."""
    recorded: RunTrace = field(repr=False)
    """The trace, not yet assembled."""

    @cached_property
    def trace(self) -> Trace:
        """The trace of all steps so far, for `metropolis replay`; assembled on first access."""
        return self.recorded.assemble()

    def _repr_html_(self) -> str:
        clock = "simulated time" if self.simulated else "real time"
        rate = self.calls / self.makespan_s if self.makespan_s else 0.0
        functions = sorted(self.by_function.items(), key=lambda one: -one[1].calls)
        facts = {
            "mode": self.mode if self.rule is None else f"{self.mode}, {self.rule}",
            "agents": f"{self.agents:,}",
            "steps": f"{self.steps:,}",
            "stopped": self.stopped,
            "seed": self.seed,
            "duration": f"{self.makespan_s:,.1f} s of {clock} ({self.wall_s:,.1f} s of wall time)",
            "calls": f"{self.calls:,} ({rate:,.2f} per second)",
            "tokens": f"{self.prompt_tokens:,} prompt, {self.output_tokens:,} output",
            "cost": f"{self.bought.cost:,.4f}" if self.bought.cost else None,
            "functions": listed([f"{name} {total.calls:,}" for name, total in functions]) or None,
            "history": self.history_sha256,
        }
        figures = []
        if 0 < self.calls <= DRAWN_CALLS_MAX:
            in_flight = self._in_flight
            caption = f"Calls in flight over {clock}, at most {in_flight.max():,}."
            figures = [figure(draw_chart(in_flight), caption)]
        return card("run", self.recorded.meta.name, facts, figures)

    @cached_property
    def _in_flight(self) -> npt.NDArray[np.int64]:
        """(BINS,): the most calls in flight at once, in equal parts of the time so far."""
        spans = [
            (call.sent, call.completed)
            for _, calls in self.recorded.steps_from(0)
            for _, _, call in calls
            if call.completed is not None
        ]
        begins, ends = np.rint(np.array(spans).reshape(-1, 2).T * 1e6).astype(np.int64)
        times, values = sum_over_time(begins, ends, np.ones_like(begins))
        if not len(times):
            return np.zeros(BINS, np.int64)
        edges = np.linspace(0, int(times[-1]), BINS + 1)
        most = np.zeros(BINS, np.int64)
        at = np.clip(np.searchsorted(edges, times, "right") - 1, 0, BINS - 1)
        np.maximum.at(most, at, values)
        carried = np.append(0, values)[np.searchsorted(times, edges[:-1], "right")]
        in_flight: npt.NDArray[np.int64] = np.maximum(most, carried)
        return in_flight
