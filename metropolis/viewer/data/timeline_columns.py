"""Executions and calls of a side, from its timeline, while that grows and afterwards.

Kept as numbers: 16 bytes per agent-step and 56 per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metropolis.timeline.columns import NONE, Calls, Executions, Timeline
from metropolis.timeline.reader import TimelineFollower
from metropolis.types import MetropolisError, Step
from metropolis.viewer.data.chunks import (
    CHUNK_ROWS,
    NoChunkError,
    check_number,
    chunk_steps,
    count_of,
)

Float32 = npt.NDArray[np.float32]
NUMBER_BITS = 20
"""Bits of a call's number within its agent-step, in the key of the call."""
ROWS_MAX = 1 << 28
"""Agent-steps: with 16 bytes each they fill 4 GiB."""
FAILED, WASTED = 1, 2
CALL_COLUMNS: tuple[tuple[str, type[np.generic]], ...] = (
    ("index", np.int32),
    ("step", np.int32),
    ("agent", np.int32),
    ("function", np.int32),
    ("model", np.int32),
    ("instance", np.int32),
    ("sent", np.float32),
    ("started", np.float32),
    ("completed", np.float32),
    ("prompt_tokens", np.int32),
    ("output_tokens", np.int32),
    ("flags", np.int32),
)
"""The columns of a chunk of calls, in their order."""
EXECUTION_COLUMNS = (
    ("dispatched", np.float32, np.nan),
    ("committed", np.float32, np.nan),
    ("blocked_by", np.int32, NONE),
    ("cluster", np.int32, NONE),
)
"""The columns of a chunk of executions, and what stands for a missing value."""


class _Rows:
    """Columns of equal length that grow."""

    def __init__(self, columns: Sequence[tuple[str, Any, Any]]) -> None:
        self.count = 0
        self._missing = {name: missing for name, _, missing in columns}
        self.columns = {name: np.full(1024, missing, kind) for name, kind, missing in columns}

    def extend_to(self, count: int) -> None:
        """Have at least `count` rows; new ones have missing values."""
        self.count = max(self.count, count)
        for name, column in self.columns.items():
            if len(column) < count:
                grown = np.full(max(count, 2 * len(column)), self._missing[name], column.dtype)
                grown[: len(column)] = column
                self.columns[name] = grown

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name][: self.count]


class _Names:
    """Numbers for names, in the order of their first appearance."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def numbered(self, index: npt.NDArray[np.int32], names: Sequence[str]) -> Any:
        """The numbers of `names[index]`."""
        own = [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        return np.array(own, np.int32)[index] if own else index


class TimelineColumns:
    """The timeline in `folder`, of a side with `agents` agents. Call `refresh` first."""

    def __init__(self, folder: Path, agents: int) -> None:
        self._folder, self._agents = folder, agents
        self._chunk_rows = chunk_steps(agents) * agents
        self._restart()

    def _restart(self) -> None:
        self._follower = TimelineFollower(self._folder)
        self._executions = _Rows(EXECUTION_COLUMNS)
        self._calls = _Rows(
            [*((name, kind, 0) for name, kind in CALL_COLUMNS), ("key", np.int64, 0)]
        )
        self._functions, self._models = _Names(), _Names()
        self._number: int | None = None
        self._complete: Step = 0
        """All agents have committed the steps below it."""
        self.is_there = False
        """Whether there is a timeline."""
        self.first_step: Step | None = None
        """The first step of which it knows."""
        self.end_s = 0.0
        """The latest time in it."""
        self.instances = 0
        """The number of instances that calls name."""
        self.simulated = False

    @property
    def functions(self) -> list[str]:
        """The names of the functions of calls, by number."""
        return list(self._functions.numbers)

    @property
    def models(self) -> list[str]:
        """The names of the models of calls, by number."""
        return list(self._models.numbers)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self._calls.count

    @property
    def tokens(self) -> int:
        """The number of tokens of all calls."""
        return sum(int(self._calls[name].sum()) for name in ("prompt_tokens", "output_tokens"))

    @property
    def steps(self) -> Step:
        """The number of steps up to the newest that an agent has begun."""
        return self._executions.count // self._agents

    @property
    def damage(self) -> str | None:
        """A sentence, if a file of it is damaged."""
        return self._follower.damage

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of chunks by name."""
        return {
            "executions": count_of(self._executions.count, self._chunk_rows),
            "calls": count_of(self._calls.count, CHUNK_ROWS),
        }

    # --- following

    def refresh(self) -> dict[str, set[int]]:
        """Read what is new; return the numbers of the chunks that changed by name.

        Raises MetropolisError if a file is of another format.
        """
        found = self._follower.poll()
        if found is None:
            return {}
        self._check(found)
        if self._number not in (None, found.meta.number):  # the run continued earlier, perhaps
            self._restart()
            found = self._follower.poll() or found
        self._number = found.meta.number
        self.is_there, self.simulated = True, found.meta.clock == "simulated"
        changed = {
            "executions": self._add_executions(found.executions),
            "calls": self._add_calls(found.calls),
        }
        changed["ends"] = {0} if changed["executions"] else set()
        changed["bounds"] = {0} if changed["calls"] else set()
        return {name: numbers for name, numbers in changed.items() if numbers}

    def _check(self, found: Timeline) -> None:
        """Raise MetropolisError if it is not of this side, or has too many steps to be kept."""
        found.check_agents(self._agents, self._folder)
        for rows in (found.executions, found.calls):
            steps = int(rows.step.max(initial=0)) + 1
            if steps * self._agents > ROWS_MAX:
                raise MetropolisError(
                    f"{self._folder}: has {steps} steps of {self._agents} agents; the viewer "
                    f"shows up to {ROWS_MAX} agent-steps"
                )

    def _add_executions(self, new: Executions) -> set[int]:
        """Add executions; return the numbers of the chunks that changed."""
        if not len(new):
            return set()
        if self.first_step is None:
            self.first_step = int(new.step.min())
        rows = self._executions
        at = new.step.astype(np.int64) * self._agents + new.agent
        known = self.counts["executions"]
        rows.extend_to((int(new.step.max()) + 1) * self._agents)
        rows["dispatched"][at], rows["committed"][at] = new.dispatched_s, new.committed_s
        rows["blocked_by"][at], rows["cluster"][at] = new.blocked_by, new.cluster
        self._extend_end(new.dispatched_s, new.committed_s)
        changed = {int(number) for number in np.unique(at // self._chunk_rows)}
        changed |= set(range(known, self.counts["executions"]))
        begun_s = new.dispatched_s[~np.isnan(new.dispatched_s)]
        if len(begun_s):
            changed |= self._fill_before(float(begun_s.min()))
        return changed | self._fill_holes()

    def _fill_before(self, now_s: float) -> set[int]:
        """Steps before the first recorded one, of a branch, were committed when that began."""
        if not self.first_step:
            return set()
        rows, first = self._executions, self.first_step * self._agents
        if not np.isnan(rows["committed"][first - 1]):
            return set()
        rows["dispatched"][:first] = rows["committed"][:first] = now_s
        return set(range(count_of(first, self._chunk_rows)))

    def _fill_holes(self) -> set[int]:
        """Steps that a killed process lost were committed when the agent's next known one was."""
        tables = [
            self._executions[name].reshape(-1, self._agents)[self._complete :]
            for name in ("dispatched", "committed")
        ]
        committed = tables[1]
        following = np.fmin.accumulate(committed[::-1])[::-1]
        holes = np.isnan(committed) & ~np.isnan(following)
        for table in tables:
            lost = holes & np.isnan(table)
            table[lost] = following[lost]
        at = (np.flatnonzero(holes.any(axis=1)) + self._complete) * self._agents
        open_steps = np.flatnonzero(np.isnan(committed).any(axis=1))
        self._complete += int(open_steps[0]) if len(open_steps) else len(committed)
        return {int(number) for number in np.unique(at // self._chunk_rows)}

    def _add_calls(self, new: Calls) -> set[int]:
        """Add calls, which replace those with the same keys; return the changed chunks."""
        if not len(new):
            return set()
        rows, known = self._calls, self._calls.count
        order = np.argsort(new.sent_s, kind="stable")
        key = (new.step.astype(np.int64) * self._agents + new.agent << NUMBER_BITS) + new.number
        at = np.full(len(new), -1, np.int64)
        late = np.flatnonzero(rows["step"] >= new.step.min())  # only these can have equal keys
        if len(late):
            by_key = late[np.argsort(rows["key"][late])]
            place = np.searchsorted(rows["key"][by_key], key).clip(0, len(late) - 1)
            found = by_key[place]
            at = np.where(rows["key"][found] == key, found, -1)
        added = order[at[order] < 0]
        at[added] = known + np.arange(len(added))
        rows.extend_to(known + len(added))
        values = {
            "index": at,
            "step": new.step,
            "agent": new.agent,
            "function": self._functions.numbered(new.function, new.functions),
            "model": self._models.numbered(new.model, new.models),
            "instance": new.instance,
            "sent": new.sent_s,
            "started": new.started_s,
            "completed": new.completed_s,
            "prompt_tokens": new.prompt_tokens,
            "output_tokens": new.output_tokens,
            "flags": FAILED * new.failed + WASTED * new.wasted,
            "key": key,
        }
        for name, column in values.items():
            rows[name][at] = column
        self.instances = max(self.instances, int(new.instance.max()) + 1)
        self._extend_end(new.sent_s, new.completed_s)
        return {int(number) for number in np.unique(at // CHUNK_ROWS)}

    def _extend_end(self, *times: npt.NDArray[np.float64]) -> None:
        """Chunks round times, perhaps up: their latest is not after the end, either."""
        latest = max(float(of[np.isfinite(of)].max(initial=0.0)) for of in times)
        self.end_s = max(self.end_s, latest, float(np.float32(latest)))

    # --- chunks

    def executions(self, number: int) -> bytes:
        """The columns of `EXECUTION_COLUMNS`, (steps of the chunk, agents) each."""
        part = self._part("executions", number, self._chunk_rows)
        return b"".join(self._executions[name][part].tobytes() for name, _, _ in EXECUTION_COLUMNS)

    def ends(self) -> bytes:
        """Float32 (chunks of executions, agents): the time at which each agent committed its last
        step of the chunk; NaN if it has not."""
        committed = self._executions["committed"].reshape(-1, self._agents)
        steps = self._chunk_rows // self._agents
        last = [*range(steps - 1, len(committed), steps)]
        if len(committed) % steps:
            last.append(len(committed) - 1)
        return committed[last].tobytes()

    def calls_chunk(self, number: int) -> bytes:
        """Int32: their number n; then the columns of `CALL_COLUMNS`, (n,) each, by time sent."""
        part = self._part("calls", number, CHUNK_ROWS)
        order = np.argsort(self._calls["sent"][part], kind="stable")
        columns = [self._calls[name][part][order].tobytes() for name, _ in CALL_COLUMNS]
        return b"".join([np.int32(len(order)).tobytes(), *columns])

    def bounds(self) -> bytes:
        """Float32 (chunks of calls, 2): when the first call of each was sent, and when the last one
        ended, or was known last if its end is not recorded."""
        if not self._calls.count:
            return b""
        firsts = np.arange(0, self._calls.count, CHUNK_ROWS)
        times = [self._calls[name] for name in ("sent", "started", "completed")]
        latest = np.fmax.reduce(times)
        lows = np.minimum.reduceat(times[0], firsts)
        return np.stack([lows, np.maximum.reduceat(latest, firsts)], 1).tobytes()

    def call(self, index: int) -> tuple[Step, int, int]:
        """Step, agent and number within the agent-step of a call, which is negative if its
        execution was wrong."""
        if not 0 <= index < self.calls:
            raise NoChunkError(f"there are {self.calls} calls, and no call {index}")
        step, agent, key = (int(self._calls[name][index]) for name in ("step", "agent", "key"))
        return step, agent, key - (step * self._agents + agent << NUMBER_BITS)

    def _part(self, name: str, number: int, rows: int) -> slice:
        check_number(number, self.counts[name], name)
        return slice(number * rows, (number + 1) * rows)
