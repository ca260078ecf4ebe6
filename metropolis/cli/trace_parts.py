"""Parts of a trace, as the options --hours and --agents name them."""

from __future__ import annotations

from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError


def cut_hours(trace: Trace, hours: str) -> Trace:
    """Return the part of the simulated day in `hours`, like `12-13`; `all` is the whole trace."""
    if hours == "all":
        return trace
    first_text, _, last_text = hours.partition("-")
    try:
        first_hour, last_hour = float(first_text), float(last_text)
    except ValueError:
        raise MetropolisError(
            f"--hours: {hours!r} is not a stretch of hours; write it like 12-13, or all"
        ) from None
    if not first_hour < last_hour:
        raise MetropolisError(f"--hours: {hours} ends before it begins; write it like 12-13")
    try:
        window = trace.between_hours(first_hour, last_hour)
    except MetropolisError as error:
        raise MetropolisError(f"--hours: {error}") from None
    if not window.steps:
        raise MetropolisError(f"--hours: {hours} is shorter than a step of {trace.meta.step_s:g} s")
    return window


def cut_agents(trace: Trace, count: int) -> Trace:
    """Return the trace of the first `count` agents."""
    if count > trace.agents:
        raise MetropolisError(
            f"--agents: {count} is more than the {trace.agents} agents of the trace; "
            "`metropolis trace tile` makes a larger one"
        )
    return trace if count == trace.agents else trace.first_agents(count)
