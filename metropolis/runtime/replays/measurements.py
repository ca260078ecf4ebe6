"""What a replay measures, however it is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Progress = Callable[[int], None]
"""Called with the number of agent-steps committed since the last call."""


class Measurements(TypedDict):
    """See the fields of `metropolis.runtime.replays.replay.ReplayResult`."""

    makespan_sim_s: float
    utilisation: float | None
    preemptions: int
    wasted_calls: int
    controller_us_per_agent_step: float | None
    sent_sim_s: Float64
    started_sim_s: Float64
    completed_sim_s: Float64
    instance: Int32
    dispatched_sim_s: Float64
    committed_sim_s: Float64
    blocked_by: Int32
    cluster: Int32
    wasted: Int32


def utilisation(busy_sim_s: float, count: int, makespan_sim_s: float) -> float:
    """Mean busy share of `count` instances or GPUs; `busy_sim_s`: summed over them."""
    # sums of floats may exceed the whole by a rounding
    return min(1.0, busy_sim_s / (count * makespan_sim_s)) if makespan_sim_s else 0.0
