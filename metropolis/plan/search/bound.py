"""A lower bound of an application's duration, under the same cost model.

No schedule ends before

* the GPUs have done the least work that each request can cost: its share of an iteration's fixed
  cost in the largest batch that can occur, and its own tokens, at the best tensor parallelism;
* a chain of requests that need each other has been computed, each alone on the fastest instance.

Every node is loaded at least once, on as few GPUs and as fast as possible.
"""

from __future__ import annotations

import numpy as np

from metropolis._core import InstancePool, Profile, Request
from metropolis.plan.timeline import Timeline
from metropolis.plan.work import Times
from metropolis.plan.workload import NodeWorkload


def lower_bound_s(timeline: Timeline) -> float:
    """Seconds before which the timeline's workload cannot be complete."""
    return max(_work_bound_s(timeline), _chain_bound_s(timeline))


def _work_bound_s(timeline: Timeline) -> float:
    machine, gpu_s = timeline.machine, 0.0
    for workload in timeline.workload.values():
        model = workload.node.model
        plans = machine.plans(model)
        gpu_s += min(
            plan.tp * _least_work_s(timeline.profile(model, plan.tp), workload) for plan in plans
        )
        gpu_s += min(plan.gpus * machine.load_s(model, plan) for plan in plans)
    return gpu_s / machine.gpus


def _least_work_s(profile: Profile, workload: NodeWorkload) -> float:
    """The instance's time for all requests, if each iteration had the largest batch."""
    prompt = workload.prompt_tokens.astype(float)
    decoded = (workload.output_tokens - 1).astype(float)
    read = decoded * prompt + decoded * (decoded + 1) / 2  # KV tokens, over a request's iterations
    smallest = int((workload.prompt_tokens + workload.output_tokens).min())
    batch = min(profile.max_sequences, len(workload), profile.kv_capacity_tokens // smallest + 1)
    computed = prompt.sum() + decoded.sum()
    fixed_ms = profile.w_ms * decoded.sum() / batch
    linear_ms = profile.g_ms * computed + profile.h_ms * decoded.sum() / batch
    prefill_ms = profile.q_ms * (prompt * prompt / 2).sum()
    own_ms = profile.b_ms * decoded.sum() + profile.k_ms * read.sum()
    starts_ms = 0.0 if profile.c_once else profile.c_ms * len(workload)
    return float(max(fixed_ms, linear_ms) + prefill_ms + own_ms + starts_ms) / 1e3


def _chain_bound_s(timeline: Timeline) -> float:
    machine = timeline.machine
    ends: dict[str, Times] = {}
    for name, workload in timeline.workload.items():
        model = workload.node.model
        plans = machine.plans(model)
        start_s = min(machine.load_s(model, plan) for plan in plans)
        profiles = [timeline.profile(model, tp) for tp in sorted({plan.tp for plan in plans})]
        begins = np.full(len(workload), start_s)
        for need in workload.needs:
            np.maximum.at(begins, need.rows, ends[need.node][need.answers])
        ends[name] = begins
        for row, previous in enumerate(workload.previous.tolist()):
            if previous >= 0:
                begins[row] = max(begins[row], begins[previous])
            request = Request(int(workload.prompt_tokens[row]), int(workload.output_tokens[row]))
            begins[row] += min(InstancePool.isolated_sim_s(each, request) for each in profiles)
    return max(float(each.max()) for each in ends.values())
