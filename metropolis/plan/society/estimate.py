"""A quick estimate of how long a stretch of a trace takes on an allocation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metropolis._core import InstancePool, Request, simulate
from metropolis.plan.machine import ExecutionPlan
from metropolis.plan.society.allocation import Allocation, Models
from metropolis.trace.schema import Trace

Float64 = npt.NDArray[np.float64]


class Estimate:
    """The sum of two bounds: the work of the busiest model, and the calls of the busiest agent.

    The first sends all calls of a model at once; the second sends those of an agent one after
    another, each to an idle copy.
    """

    def __init__(self, trace: Trace, models: Models) -> None:
        self._trace, self._models = trace, models
        calls = trace.calls
        index = [calls.models.index(name) if name in calls.models else -1 for name in models.names]
        self._calls = [np.flatnonzero(calls.model == each) for each in index]
        """The calls of each model."""
        self._work_s: dict[tuple[int, ExecutionPlan], float] = {}
        self._alone_s: dict[tuple[int, int], Float64] = {}

    def seconds(self, allocation: Allocation) -> float:
        """The estimate; infinite if the allocation lacks a model that is needed."""
        busiest_s, agents_s = 0.0, np.zeros(self._trace.agents)
        for model, plan in enumerate(allocation):
            if plan is not None:
                busiest_s = max(busiest_s, self._work(model, plan))
                agents_s += self._alone(model, plan.tp)
            elif len(self._calls[model]):
                return float("inf")
        return busiest_s + float(agents_s.max(initial=0.0))

    def _work(self, model: int, plan: ExecutionPlan) -> float:
        """Seconds for all calls of the model, sent at once."""
        if (model, plan) not in self._work_s:
            calls, of = self._trace.calls, self._calls[model]
            result = simulate(
                self._models.machine.profile(self._models.names[model], plan.tp),
                np.zeros(len(of)),
                calls.prompt_tokens[of],
                calls.output_tokens[of],
                instances=plan.dp,
            )
            self._work_s[model, plan] = float(result["last_token_sim_s"].max(initial=0.0))
        return self._work_s[model, plan]

    def _alone(self, model: int, tensor_parallel: int) -> Float64:
        """(agents,): seconds for the agent's calls of the model, one after another."""
        if (model, tensor_parallel) not in self._alone_s:
            calls, of = self._trace.calls, self._calls[model]
            profile = self._models.machine.profile(self._models.names[model], tensor_parallel)
            lengths, which = np.unique(
                np.stack([calls.prompt_tokens[of], calls.output_tokens[of]]), axis=1,
                return_inverse=True,
            )  # fmt: skip
            seconds = [
                InstancePool.isolated_sim_s(profile, Request(prompt, output))
                for prompt, output in lengths.T.tolist()
            ]
            alone_s = np.zeros(self._trace.agents)
            np.add.at(alone_s, calls.agent[of], np.array(seconds, np.float64)[which.reshape(-1)])
            self._alone_s[model, tensor_parallel] = alone_s
        return self._alone_s[model, tensor_parallel]
