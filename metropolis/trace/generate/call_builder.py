"""Chains of calls, collected by trigger and converted to the columns of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metropolis.trace.generate.calibration import Calibration
from metropolis.trace.schema import Calls, Int32, Int64

Floats = npt.NDArray[np.float64]

PERCEIVE, PLAN, ACT, REACT, TALK, REFLECT = range(6)
"""The order of triggers within an agent-step."""


@dataclass
class CallBuilder:
    """A builder of calls."""

    fit: Calibration
    _blocks: list[tuple[Int64, Int64, Int64, Int64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._index = {name: i for i, name in enumerate(self.fit.functions)}

    def add(self, order: int, step: Int64, agent: Int64, *chains: str, times: int = 1) -> None:
        """Add the functions of `chains`, `times` times, for each (step[i], agent[i])."""
        functions = np.array(
            [self._index[f] for chain in chains for f in self.fit.chains[chain]] * times, np.int64
        )
        n = len(functions)
        self._blocks.append(
            (
                np.repeat(step, n),
                np.repeat(agent, n),
                np.full(n * len(step), order),
                np.tile(functions, len(step)),
            )
        )

    def length(self, *chains: str) -> float:
        """Mean number of calls of `chains`, including repeated attempts."""
        attempts = self._attempts_mean()
        functions = [self._index[f] for chain in chains for f in self.fit.chains[chain]]
        return float(attempts[functions].sum())

    def count(self, hour: Int64, hours: int) -> Floats:
        """Expected number of calls so far per hour; `hour` is the hour of each step."""
        step, _, _, function = self._columns()
        expected = np.bincount(hour[step], self._attempts_mean()[function], hours)
        return expected.astype(np.float64)

    def lay_out(self, rng: np.random.Generator) -> Calls:
        """The calls as columns; within an agent-step each call waits for the previous one."""
        step, agent, order, function = self._columns()
        sorting = np.lexsort((order, agent, step))
        sorting = np.repeat(sorting, self._attempts(function[sorting], rng))
        step, agent, function = step[sorting], agent[sorting], function[sorting]
        chained = np.zeros(len(step), np.bool_)
        chained[1:] = (np.diff(step) == 0) & (np.diff(agent) == 0)
        rows = list(self.fit.functions.values())
        prompt, output = self._prompts(function, rng), self._outputs(function, rng)
        by_agent = np.array([row.prefix == "agent" for row in rows])[function]
        prefix = self._column([row.prompt[0] * row.prefix_share for row in rows])[function]
        return Calls(
            step=_int32(step),
            agent=_int32(agent),
            function=_int32(function),
            functions=tuple(self.fit.functions),
            model=np.zeros(len(step), np.int32),
            models=(self.fit.model,),
            prompt_tokens=prompt,
            output_tokens=output,
            # Ids of the functions' common prefixes come first, then those of the agents.
            prefix_id=np.where(by_agent, len(rows) + agent, function),
            prefix_tokens=_int32(prefix * self.fit.prompt_scale),
            parent_offsets=np.concatenate([[0], np.cumsum(chained)]).astype(np.int64),
            parents=np.flatnonzero(chained) - 1,
        )

    def _columns(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Step, agent, order and function of all calls so far."""
        step, agent, order, function = map(np.concatenate, zip(*self._blocks, strict=True))
        return step, agent, order, function

    def _failing(self) -> Floats:
        return self._column([row.failing for row in self.fit.functions.values()])

    def _attempts_mean(self) -> Floats:
        failing = self._failing()
        return (1 - failing**self.fit.most_attempts) / (1 - failing)

    def _attempts(self, function: Int64, rng: np.random.Generator) -> Int64:
        drawn = rng.geometric(1 - self._failing()[function])
        return np.minimum(drawn, self.fit.most_attempts)

    def _prompts(self, function: Int64, rng: np.random.Generator) -> Int32:
        """Beta-distributed between each function's lowest and highest length, with its mean."""
        low, mean, high = self._column([row.prompt for row in self.fit.functions.values()]).T
        share = ((mean - low) / (high - low))[function]
        drawn = rng.beta(4 * share, 4 * (1 - share))
        return _int32((low[function] + drawn * (high - low)[function]) * self.fit.prompt_scale)

    def _outputs(self, function: Int64, rng: np.random.Generator) -> Int32:
        rows = self.fit.functions.values()
        mean = self._column([row.output for row in rows])[function]
        most = self._column([row.most_output for row in rows])[function]
        shape = self.fit.output_sd**-2
        return _int32(np.clip(np.rint(rng.gamma(shape, mean / shape)), 1, most))

    @staticmethod
    def _column(values: Sequence[object]) -> Floats:
        return np.array(values, np.float64)


def _int32(values: npt.NDArray[np.generic]) -> Int32:
    return values.astype(np.int32)
