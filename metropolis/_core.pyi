"""Types of the C++ extension.

It checks every argument: ValueError or TypeError for invalid ones, with the reason.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

# --- controller (cpp/bindings/bind_controller.cpp)

class Metric:
    """A metric of `metropolis.rules.metrics`, in C++."""

    def within(
        self, p: tuple[float, float], q: tuple[float, float], radius: float, reach: float
    ) -> bool: ...
    def flaw(self, p: tuple[float, float]) -> str | None: ...

def plane_metric(name: str) -> Metric: ...
def geodesic_metric(walls: npt.NDArray[np.uint8], horizon: int) -> Metric: ...
def genagent_metric(
    walls: npt.NDArray[np.uint8],
    arenas: npt.NDArray[np.int32],
    max_velocity: float,
    horizon: int,
) -> Metric: ...
def hops_metric(offsets: npt.NDArray[np.int64], neighbours: npt.NDArray[np.int32]) -> Metric: ...
def perceives(
    metric: Metric,
    p: npt.NDArray[np.float64],
    q: npt.NDArray[np.float64],
    radius: float,
) -> npt.NDArray[np.bool_]: ...

class Controller:
    """See `metropolis.controller.base.Controller`. Commands are (step, agents).

    ValueError on invalid input; RuntimeError, from `validate`, on a violated invariant.
    """

    def start(self) -> list[tuple[int, tuple[int, ...]]]: ...
    def commit(
        self, agents: Sequence[int], positions: Sequence[tuple[float, float]]
    ) -> list[tuple[int, tuple[int, ...]]]: ...
    def blocked_by(self) -> npt.NDArray[np.int32]: ...
    def clear_until(self, agent: int) -> int: ...
    @property
    def floor(self) -> int: ...
    def validate(self) -> None: ...

def make_controller(
    couple_radius: float,
    block_radius: float,
    metric: Metric,
    max_velocity: float,
    positions: npt.ArrayLike,
    target_step: int,
    check_moves: bool = True,
    steps: Sequence[int] = (),
) -> Controller: ...
def make_graph_controller(
    agents: int, steps: int, offsets: npt.ArrayLike, partners: npt.ArrayLike
) -> Controller: ...
def make_value_controller(
    agents: int,
    steps: int,
    offsets: npt.ArrayLike,
    writers: npt.ArrayLike,
    ago: npt.ArrayLike,
) -> Controller: ...

class ControllerBench(TypedDict):
    agent_steps: int
    cpu_s: float
    construct_cpu_s: float
    commits: int
    commit_p50_us: float
    commit_p99_us: float
    commit_max_us: float
    bytes_fixed: float
    bytes_per_agent: float
    skew_max: int

def bench_controller(
    couple_radius: float, block_radius: float, metric: Metric, agents: int, steps: int, seed: int
) -> ControllerBench: ...

# --- instance (cpp/bindings/bind_instance.cpp)

class Profile:
    """Cost of one iteration and capacity of one instance (cpp/include/metropolis/instance.hpp)."""

    w_ms: float
    g_ms: float
    h_ms: float
    b_ms: float
    k_ms: float
    q_ms: float
    c_ms: float
    k_mixed_ms: float
    c_once: bool
    d_ms: float
    e_ms: float
    kv_capacity_tokens: int
    block_tokens: int
    chunk_tokens: int
    max_sequences: int
    kv_bytes_per_token: int
    """This and the next two are for preemption by swap."""
    pcie_gb_per_s: float
    """Between GPU and host, summed over the links of the instance."""
    host_gb: float
    """Host memory for swapped KV blocks."""
    def __init__(
        self,
        *,
        w_ms: float = 0.0,
        g_ms: float = 0.0,
        h_ms: float = 0.0,
        b_ms: float = 0.0,
        k_ms: float = 0.0,
        q_ms: float = 0.0,
        c_ms: float = 0.0,
        k_mixed_ms: float = 0.0,
        c_once: bool = False,
        d_ms: float = 0.0,
        e_ms: float = 0.0,
        kv_capacity_tokens: int,
        block_tokens: int = 16,
        chunk_tokens: int = 2048,
        max_sequences: int = 128,
        kv_bytes_per_token: int = 0,
        pcie_gb_per_s: float = 0.0,
        host_gb: float = 0.0,
    ) -> None: ...
    def __copy__(self) -> Profile: ...

class Request:
    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        prefix: Sequence[tuple[int, int]] = (),
        reused_tokens: int = 0,
        reused_share: float = 0.0,
    ) -> None: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def prefix(self) -> list[tuple[int, int]]:
        """The known beginning of the sequence (prompt, then answer), as segments (text, tokens).

        Requests share tokens up to the point where their segments differ; tokens after the segments
        are unique.
        """

    @property
    def reused_tokens(self) -> int:
        """Leading tokens that start from the cache of another instance or model."""

    @property
    def reused_share(self) -> float:
        """Share of their prefill that is left, from 0 to 1; a preemption ends the reuse."""

class Completion:
    """A request that left: completed with all its tokens, or aborted with those it had."""

    @property
    def id(self) -> int: ...
    @property
    def instance(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def first_token_sim_s(self) -> float:
        """Infinity without tokens."""

    @property
    def last_token_sim_s(self) -> float:
        """Time at which it left."""

    @property
    def preempted_sim_s(self) -> float:
        """Time that it waited after preemptions for lack of memory, since its first token."""

    @property
    def aborted(self) -> bool: ...

class InstanceStatus:
    """State of an instance at its pool's current time."""

    @property
    def kv_used_blocks(self) -> int:
        """Held by running sequences."""

    @property
    def kv_cached_blocks(self) -> int:
        """Held by no sequence, kept for prefix reuse."""

    @property
    def kv_capacity_blocks(self) -> int: ...
    @property
    def kv_host_blocks(self) -> int:
        """Swapped out."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def preemptions(self) -> int:
        """So far."""

    @property
    def swapped_blocks(self) -> int:
        """So far, out and in."""

    @property
    def prefix_hit_tokens(self) -> int:
        """Tokens of prompts and recomputed answers found in the cache so far."""

    @property
    def reused_tokens(self) -> int:
        """Tokens cheaper by the cache of another instance or model so far."""

    @property
    def sequence_tokens(self) -> int:
        """Prompt and output tokens so far of all requests that are not aborted."""

class InstancePool:
    """Data-parallel replicas behind a least-loaded dispatcher.

    `preemption`: treatment of a preempted sequence's KV blocks: "recompute" drops them, "swap"
    copies them to host memory and back if they fit there, those in the prefix cache when they are
    evicted; "swap_all" copies all of them, evicted or not (vLLM 0.6). `decision_iterations`:
    multi-step scheduling as in vLLM 0.6: iterations between decisions to admit, preempt or finish
    requests.

    `schedule`: "mixed": decoding sequences go first in an iteration, prefills get the rest (vLLM
    v1); "prefill_first": prefills have iterations of their own, which precede decoding (SGLang,
    vLLM v0). Without `chunked_prefill` a prefill takes one iteration. `watermark`: share of the KV
    blocks that admission leaves free unless the instance is empty (vLLM v0: 0.01). `surplus`:
    kept requests whose KV is still on the GPU decode in the places of those that complete between
    two decisions (Agentix §4.2.2); they have these tokens when they are submitted again.
    """

    def __init__(
        self,
        profile: Profile,
        instances: int = 1,
        prefix_reuse: bool = False,
        preemption: Literal["recompute", "swap", "swap_all"] = "recompute",
        decision_iterations: int = 1,
        schedule: Literal["mixed", "prefill_first"] = "mixed",
        chunked_prefill: bool = True,
        watermark: float = 0.0,
        surplus: bool = False,
    ) -> None: ...
    def submit(self, id: int, request: Request, now_sim_s: float) -> None: ...
    def abort(self, id: int, now_sim_s: float, keep: bool = False) -> None:
        """Abort like an engine; `advance` reports the request.

        A waiting request leaves at once; a running one leaves with its tokens at the end of the
        current iteration, complete if that yields its last token. With preemption by swap, `keep`
        copies its KV blocks to the host if they fit; the request resumes with them when its id is
        submitted again with its tokens as part of its prompt. ValueError for a request that is not
        outstanding or is already aborted, which changes nothing, and for one that ends until then.
        """

    def discard(self, id: int, now_sim_s: float) -> None:
        """Free what the host keeps, or would keep, of an aborted request that will not come again.

        ValueError for a time before the pool's.
        """

    def reprioritize(self, priorities: Mapping[int, int], now_sim_s: float) -> None:
        """Give requests, waiting and running ones, another `Request.priority`, by id.

        Ids that are not outstanding are ignored. ValueError for a time before the pool's.
        """

    def next_event_sim_s(self) -> float:
        """A time at or before the next completion; infinity when nothing is outstanding."""

    def advance(self, until_sim_s: float) -> list[Completion]:
        """Completions up to and including `until_sim_s`, sorted by (last_token_sim_s, id)."""

    def outstanding(self) -> int: ...
    def busy_sim_s(self, instance: int) -> float: ...
    def preemptions(self) -> int: ...
    def progress(self, instance: int = 0) -> dict[int, int]:
        """Output tokens so far of each running request, by id."""

    def status(self, instance: int = 0) -> InstanceStatus: ...
    def cached_tokens(self, instance: int, prefix: Sequence[tuple[int, int]]) -> int:
        """Leading tokens of `prefix` in the instance's prefix cache now, in whole blocks."""

    @staticmethod
    def check_fits(profile: Profile, request: Request) -> None:
        """ValueError for a request that an idle instance cannot serve.

        The instance decides after each iteration; with more `decision_iterations` it needs space
        for the tokens that it may decode in vain before a decision.
        """

    @staticmethod
    def iteration_sim_s(
        profile: Profile, sequences: int, kv_tokens: int, prefill_tokens: int = 0
    ) -> float:
        """Duration of an iteration in which `sequences` decode, reading `kv_tokens`.

        It also computes the first `prefill_tokens` of one prompt. ValueError for negative counts.
        """

    @staticmethod
    def isolated_sim_s(profile: Profile, request: Request, chunked_prefill: bool = True) -> float:
        """Duration of one request, with its reuse, on an otherwise idle instance.

        Ignores KV capacity.
        """

class Simulated(TypedDict):
    submitted_sim_s: npt.NDArray[np.float64]
    first_token_sim_s: npt.NDArray[np.float64]
    last_token_sim_s: npt.NDArray[np.float64]
    """Times of requests that are not completed are infinite, and their instance is -1."""

    instance: npt.NDArray[np.int32]
    generated_tokens: npt.NDArray[np.int32]
    """By the end; also those of a request that waits after a preemption."""
    busy_sim_s: float
    preemptions: int

def simulate(
    profile: Profile,
    arrival_sim_s: npt.ArrayLike,
    prompt_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    priority: npt.ArrayLike | None = None,
    prefix_id: npt.ArrayLike | None = None,
    prefix_tokens: npt.ArrayLike | None = None,
    parent: npt.ArrayLike | None = None,
    instances: int = 1,
    prefix_reuse: bool = False,
    concurrency: int = 0,
    preemption: Literal["recompute", "swap", "swap_all"] = "recompute",
    decision_iterations: int = 1,
    schedule: Literal["mixed", "prefill_first"] = "mixed",
    chunked_prefill: bool = True,
    watermark: float = 0.0,
    surplus: bool = False,
    until_sim_s: float = inf,
) -> Simulated:
    """Run a workload.

    A request with a parent, the row of an earlier one (-1: none), arrives no earlier than the
    parent's last token. With `concurrency` > 0, which excludes parents, a request waits while that
    many are outstanding. The simulation ends at `until_sim_s`. ValueError, with the row, on columns
    of unequal length, decreasing arrivals and requests that no instance can serve.
    """

# --- replay (cpp/bindings/bind_replay.cpp)

class Optimism:
    """How agents run ahead of the controller (cpp/include/metropolis/optimistic_replay.hpp)."""

    def __init__(
        self,
        *,
        metric: Metric,
        perception_radius: float,
        max_velocity: float,
        cluster_radius: float,
        risk_max: float,
        calls_half: float,
    ) -> None: ...

class Replay:
    """Replays a trace on simulated instances (cpp/include/metropolis/replay.hpp).

    `value_offsets` without values: dependencies by value are unknown. ValueError for columns that
    do not match each other, the controller or the instances.
    """

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
        value_offsets: npt.NDArray[np.int64],
        value_writers: npt.NDArray[np.int32],
        value_ago: npt.NDArray[np.int32],
        controller: Controller,
        instances: InstancePool,
        step_priority: bool,
        max_outstanding: int,
        optimism: Optimism | None = None,
    ) -> None: ...
    def run(self, agent_steps: int) -> bool:
        """Run until at least `agent_steps` more agent-steps have committed; True when all have."""

    @property
    def committed_agent_steps(self) -> int: ...
    @property
    def makespan_sim_s(self) -> float: ...
    @property
    def controller_wall_s(self) -> float: ...
    @property
    def sent_calls(self) -> int: ...
    def sent_sim_s(self) -> npt.NDArray[np.float64]: ...
    def first_token_sim_s(self) -> npt.NDArray[np.float64]: ...
    def preempted_sim_s(self) -> npt.NDArray[np.float64]: ...
    def completed_sim_s(self) -> npt.NDArray[np.float64]: ...
    def instance(self) -> npt.NDArray[np.int32]: ...
    def dispatched_sim_s(self) -> npt.NDArray[np.float64]: ...
    def committed_sim_s(self) -> npt.NDArray[np.float64]: ...
    def blocked_by(self) -> npt.NDArray[np.int32]: ...
    def cluster(self) -> npt.NDArray[np.int32]: ...
    def wasted(self) -> npt.NDArray[np.int32]: ...

# --- speculation (cpp/bindings/bind_speculation.cpp)

def bench_speculation(agents: int, steps: int, seed: int) -> dict[str, float]: ...

_Sighting = tuple[int, float, float, int]
"""(entity, x, y, digest)."""
_Read = tuple[int, int, float, float, float, Sequence[_Sighting]]
"""(kind: 0 entity, 1 entities, 2 events; entity; x, y; radius; answer)."""
_SpeculationCommand = tuple[int, int, int, tuple[int, ...], tuple[int, ...], int, bool]
"""(kind, id, step, agents, proceeds, mind, sure)."""

class Speculation:
    """See `metropolis.speculation.base.Speculation`; names and digests are numbers.

    Events take effect in `settle`. ValueError on invalid input; RuntimeError, from `validate`, on a
    violated invariant.
    """

    def __init__(
        self,
        *,
        controller: Controller,
        metric: Metric,
        perception_radius: float,
        cluster_radius: float,
        target_step: int,
        bodies: Sequence[int],
        entities: Sequence[_Sighting],
        minds: Sequence[int],
    ) -> None: ...
    def start(self) -> list[_SpeculationCommand]: ...
    def observed(self, id: int, reads: Sequence[_Read]) -> None: ...
    def proceeded(self, id: int) -> None: ...
    def resolved(
        self,
        id: int,
        reads: Sequence[_Read],
        writes: Sequence[tuple[int, tuple[float, float, int] | None]],
        events: Sequence[_Sighting],
        minds: Sequence[tuple[int, int]],
        forecasts: Sequence[tuple[int, Sequence[tuple[float, float, int]]]],
    ) -> None: ...
    def lost(self, id: int) -> None: ...
    def failed(self, id: int) -> None: ...
    def settle(self) -> list[_SpeculationCommand]: ...
    def candidates(self) -> list[int]: ...
    def next_step(self, agent: int) -> int: ...
    def speculate(self, agents: Sequence[int]) -> list[_SpeculationCommand]: ...
    def in_use(self) -> tuple[list[int], list[int]]: ...
    @property
    def floor(self) -> int: ...
    def validate(self) -> None: ...

# --- text (cpp/bindings/bind_text.cpp)

def approximate_tokens(text: str) -> int: ...
def piece_hashes(text: str, piece_tokens: int, pieces_max: int) -> list[int]: ...

# --- places that entities have left (cpp/bindings/bind_left_places.cpp)

class LeftPlaces:
    """See cpp/include/metropolis/left_places.hpp; a change is pairs of an agent and a step.

    `known` is agent -> the latest step that is known. ValueError for places that are left in a step
    before that of the last one.
    """

    def __init__(self, metric: Metric, cell_size: float) -> None: ...
    def leave(
        self, entity: int, place: tuple[float, float], step: int, change: Sequence[tuple[int, int]]
    ) -> None: ...
    def has_left(self, centre: tuple[float, float], radius: float, since: int) -> bool: ...
    def unknown_to(
        self,
        agent: int,
        known: dict[int, int],
        centre: tuple[float, float],
        radius: float,
        since: int | None,
    ) -> list[tuple[int, list[tuple[int, int]]]]: ...

# --- plain data that may have changed (cpp/bindings/bind_snapshot.cpp)

class Snapshot:
    """The immutable objects of plain data, and the containers around them.

    Plain data consists of None, truth values, numbers, texts, bytes, dates and times, tuples,
    lists, dicts, and dataclasses without fields that run code; nothing `matches` other data.
    """

    def __init__(self, value: object) -> None: ...
    @property
    def is_complete(self) -> bool: ...
    def matches(self, value: object) -> bool:
        """Whether `value` has the same objects in the same places."""

def have_same_items(before: list[object], now: list[object]) -> bool:
    """Whether two lists hold the same objects."""

def is_immutable(value: object) -> bool:
    """Whether `value` can never change.

    This is text, bytes, a number, a date or time, None, and a tuple or a frozen dataclass that
    contains immutable values only. Raises RecursionError for data that is nested too deep.
    """

# --- memory (cpp/bindings/bind_huge_pages.cpp)

def use_huge_pages() -> bool:
    """Let Python allocate objects in huge pages from now on, for the whole process.

    Objects are then found faster: the processor translates fewer addresses. Returns whether Linux
    provides pages of 2 MB on advice (`/sys/kernel/mm/transparent_hugepage/enabled`); False:
    nothing has changed. Further calls have no effect.
    """
