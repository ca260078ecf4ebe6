"""Lower bounds of an application's duration, under the same cost model.

No schedule ends before

* the GPUs have done the least work that each request can cost: its share of an iteration's fixed
  cost in the largest batch that fits, and its own tokens, at the best tensor parallelism;
* every chain of requests that need each other has been computed, each alone on the fastest
  instance.

Every node is loaded at least once, on as few GPUs and as fast as possible.
"""

from __future__ import annotations

import numpy as np

from metropolis._core import InstancePool, Profile, Request
from metropolis.plan.timeline import Outlook, Prediction, Timeline
from metropolis.plan.work import Remaining, Times
from metropolis.plan.workload import Counts, NodeWorkload


class Bounds:
    """The bounds of a timeline's workload."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._gpu_s = {name: _least_gpu_s(timeline, name) for name in timeline.workload}
        """The least GPU time of each request."""
        self._alone_s = {name: _alone_s(timeline, name) for name in timeline.workload}
        """The least duration of each."""
        self._after_s = _after_s(timeline, self._alone_s)
        """The least duration of what follows each."""
        self._waiting: dict[int, tuple[Remaining, float, float]] = {}

    @property
    def whole_s(self) -> float:
        """Seconds before which the workload cannot be complete."""
        machine, gpu_s, chain_s = self._timeline.machine, 0.0, 0.0
        tails_s = self.longest_tails()
        for name, workload in self._timeline.workload.items():
            model = workload.node.model
            plans = machine.plans(model)
            gpu_s += min(plan.gpus * machine.load_s(model, plan) for plan in plans)
            gpu_s += float(self._gpu_s[name].sum())
            load_s = min(machine.load_s(model, plan) for plan in plans)
            chain_s = max(chain_s, load_s + tails_s[name])
        return max(gpu_s / machine.gpus, chain_s)

    def longest_tails(self) -> dict[str, float]:
        """Node -> the least duration of its longest chain, with all that follows."""
        return {
            name: float((self._alone_s[name] + self._after_s[name]).max()) for name in self._gpu_s
        }

    def after(self, outlook: Outlook) -> float:
        """About when the application ends at the earliest, from the end of a stage on.

        Requests in progress count as done in proportion to their time.
        """
        gpu_s = tail_s = 0.0
        for name, remaining in outlook.moment.remaining.items():
            work_s, chain_s = self._of_waiting(name, remaining)
            gpu_s, tail_s = gpu_s + work_s, max(tail_s, chain_s)
        for name, prediction in outlook.predictions.items():
            work_s, chain_s = self._of_running(name, prediction, outlook.ends_s)
            gpu_s, tail_s = gpu_s + work_s, max(tail_s, chain_s)
        return outlook.ends_s + max(gpu_s / self._timeline.machine.gpus, tail_s)

    def _of_waiting(self, name: str, remaining: Remaining) -> tuple[float, float]:
        known = self._waiting.get(id(remaining))
        if known is None:
            rows = remaining.rows
            left = 1 - remaining.generated / remaining.workload.output_tokens[rows]
            known = self._waiting[id(remaining)] = (remaining, *self._sums(name, rows, left))
        return known[1:]

    def _of_running(self, name: str, prediction: Prediction, at_s: float) -> tuple[float, float]:
        run, elapsed_s = prediction.run, at_s - prediction.started.loaded_s
        is_open = run.completed_s > elapsed_s
        if not is_open.any():
            return 0.0, 0.0
        ends, begins = run.completed_s[is_open], run.first_token_s[is_open]
        left = np.ones(len(ends))
        begun = begins < elapsed_s
        left[begun] = (ends[begun] - elapsed_s) / (ends[begun] - begins[begun])
        return self._sums(name, run.remaining.rows[is_open], left)

    def _sums(self, name: str, rows: Counts, left: Times) -> tuple[float, float]:
        work_s = float((self._gpu_s[name][rows] * left).sum())
        chain_s = float((self._alone_s[name][rows] * left + self._after_s[name][rows]).max())
        return work_s, chain_s


def _least_gpu_s(timeline: Timeline, name: str) -> Times:
    workload = timeline.workload[name]
    profiles = _profiles(timeline, workload)
    times = [tp * _least_s(profile, workload) for tp, profile in profiles.items()]
    return np.asarray(np.minimum.reduce(times))  # stages may differ in tensor parallelism


def _profiles(timeline: Timeline, workload: NodeWorkload) -> dict[int, Profile]:
    """Tensor parallelism -> profile, for those that are valid."""
    model = workload.node.model
    degrees = sorted({plan.tp for plan in timeline.machine.plans(model)})
    return {tp: timeline.profile(model, tp) for tp in degrees}


def _least_s(profile: Profile, workload: NodeWorkload) -> Times:
    """An instance's time for each request, if every iteration had the largest batch.

    A batch is as large as the sequences or the memory allow. So a sequence's share of an iteration
    is at least one in all sequences, and its KV in the capacity; either sum bounds the iterations.
    """
    prompt = workload.prompt_tokens.astype(float)
    decoded = (workload.output_tokens - 1).astype(float)
    read = decoded * prompt + decoded * (decoded + 1) / 2  # KV tokens, over all its iterations
    by_sequences = decoded / min(profile.max_sequences, len(workload))
    by_memory = read / profile.kv_capacity_tokens
    iterations = max(by_sequences, by_memory, key=np.sum)
    fixed_ms = profile.w_ms * iterations
    linear_ms = profile.g_ms * (prompt + decoded) + profile.h_ms * iterations
    shared_ms = fixed_ms if fixed_ms.sum() > linear_ms.sum() else linear_ms
    prefill_ms = profile.q_ms * prompt * prompt / 2 + (0.0 if profile.c_once else profile.c_ms)
    own_ms = profile.b_ms * decoded + profile.k_ms * read
    return np.asarray((shared_ms + prefill_ms + own_ms) / 1e3)


def _alone_s(timeline: Timeline, name: str) -> Times:
    workload = timeline.workload[name]
    profiles = _profiles(timeline, workload).values()
    known: dict[tuple[int, int], float] = {}
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    times = []
    for each in lengths:
        if each not in known:
            request = Request(*each)
            known[each] = min(InstancePool.isolated_sim_s(one, request) for one in profiles)
        times.append(known[each])
    return np.array(times)


def _after_s(timeline: Timeline, alone_s: dict[str, Times]) -> dict[str, Times]:
    after = {name: np.zeros(len(each)) for name, each in timeline.workload.items()}
    for name, workload in reversed(timeline.workload.items()):
        times, alone = after[name], alone_s[name]
        for row in range(len(workload) - 1, -1, -1):
            previous = workload.previous[row]
            if previous >= 0:
                times[previous] = max(times[previous], times[row] + alone[row])
        for need in workload.needs:
            np.maximum.at(after[need.node], need.answers, (times + alone)[need.rows])
    return after
