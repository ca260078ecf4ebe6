"""Types of the C++ extension."""

from typing import Any

import numpy as np
import numpy.typing as npt

# --- controller (cpp/bindings/bind_controller.cpp)

# --- instance (cpp/bindings/bind_instance.cpp)

# --- replay (cpp/bindings/bind_replay.cpp)

class Replay:
    def __init__(
        self,
        *,
        positions: npt.NDArray[np.float32],
        call_offsets: npt.NDArray[np.int64],
        call_step: npt.NDArray[np.int32],
        call_agent: npt.NDArray[np.int32],
        parent_offsets: npt.NDArray[np.int64],
        parents: npt.NDArray[np.int64],
        prompt_tokens: npt.NDArray[np.int32],
        output_tokens: npt.NDArray[np.int32],
        prefix_id: npt.NDArray[np.int64],
        prefix_tokens: npt.NDArray[np.int32],
        controller: Any,
        instances: Any,
        step_priority: bool,
        max_outstanding: int,
    ) -> None: ...
    def run(self, agent_steps: int) -> bool: ...
    @property
    def committed_agent_steps(self) -> int: ...
    @property
    def makespan_sim_s(self) -> float: ...
    @property
    def controller_wall_s(self) -> float: ...
    def sent_sim_s(self) -> npt.NDArray[np.float64]: ...
    def completed_sim_s(self) -> npt.NDArray[np.float64]: ...
    def instance(self) -> npt.NDArray[np.int32]: ...
    def dispatched_sim_s(self) -> npt.NDArray[np.float64]: ...
    def committed_sim_s(self) -> npt.NDArray[np.float64]: ...
