"""Random pools and actions, and functions that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf

import pytest
from hypothesis import strategies as st

from metropolis._core import InstancePool, Profile, Request
from metropolis.sim.options import PoolOptions
from metropolis.sim.reference import Completion, ReferencePool, Status

Pool = InstancePool | ReferencePool
Kind = type[Pool]
KINDS = pytest.mark.parametrize("kind", [InstancePool, ReferencePool])
Text = list[tuple[int, int]]
Event = tuple[int, int, int, float, float, float, bool]
Change = tuple[float, dict[int, int]]
"""When requests are reprioritized, and the new priorities by their index."""
COMPLETION = tuple(Completion.__slots__)
SUBMIT, ABORT, KEEP, ADVANCE, REPRIORITIZE, DISCARD = range(6)
"""Actions, in their order at equal times; KEEP aborts a request that comes again."""


@dataclass(frozen=True)
class Case:
    """A profile too small for its workload, so that all cases occur."""

    profile: Profile
    instances: int
    options: PoolOptions
    requests: tuple[tuple[float, Request], ...]
    ids: tuple[int, ...]

    def pool(self, kind: type[Pool]) -> Pool:
        return kind(self.profile, self.instances, **asdict(self.options))


@st.composite
def prefixes(draw: st.DrawFn, whole_tokens: int, usual_tokens: list[int]) -> list[tuple[int, int]]:
    """Segments of three texts, mostly of their usual lengths, within `whole_tokens`."""
    segments = []
    for text in draw(st.lists(st.integers(0, 2), max_size=3)):
        tokens = draw(st.just(usual_tokens[text]) | st.integers(1, 60))
        if tokens := min(tokens, whole_tokens):
            segments.append((text, tokens))
            whole_tokens -= tokens
    return segments


@st.composite
def cases(draw: st.DrawFn, reuse: bool = True) -> Case:
    """With `reuse` some requests start from another cache."""
    block_tokens = draw(st.sampled_from([1, 2, 4, 5, 16]))
    blocks = draw(st.integers(8 if block_tokens == 1 else 4, 24))
    ms = st.floats(0, 3, allow_nan=False)
    small = st.floats(0, 0.1, allow_nan=False)
    profile = Profile(
        w_ms=draw(st.floats(0.5, 20)), g_ms=draw(small), h_ms=draw(ms), b_ms=draw(small),
        k_ms=draw(small), q_ms=draw(st.floats(0, 0.01)), c_ms=draw(ms),
        k_mixed_ms=draw(small), c_once=draw(st.booleans()), d_ms=draw(ms), e_ms=draw(small),
        kv_capacity_tokens=blocks * block_tokens, block_tokens=block_tokens,
        chunk_tokens=draw(st.integers(1, 2 * block_tokens * blocks)),
        max_sequences=draw(st.integers(1, 8)), kv_bytes_per_token=1000,
        pcie_gb_per_s=draw(st.floats(0.001, 1)), host_gb=draw(st.sampled_from([1e-5, 5e-5, 1])),
    )  # fmt: skip
    options = PoolOptions(
        draw(st.booleans()),
        draw(st.sampled_from(["recompute", "swap", "swap_all"])),
        draw(st.sampled_from([1, 1, 2, 3, 8])),
        draw(st.sampled_from(["mixed", "prefill_first"])),
        draw(st.booleans()),
        draw(st.just(0.0) | st.floats(0, 1, exclude_max=True)),
        draw(st.booleans()),
    )
    gap = st.floats(0, 0.3)
    if draw(st.booleans()):  # a grid of times, for requests that arrive at a boundary exactly
        profile = Profile(
            w_ms=1000 / 64,
            kv_capacity_tokens=profile.kv_capacity_tokens,
            block_tokens=block_tokens,
            chunk_tokens=profile.chunk_tokens,
            max_sequences=profile.max_sequences,
            kv_bytes_per_token=1000,
            pcie_gb_per_s=profile.pcie_gb_per_s,
            host_gb=profile.host_gb,
        )
        gap = st.integers(0, 20).map(lambda n: n / 64)
    now = 0.0
    requests = []
    usual_tokens = draw(st.lists(st.integers(1, 30), min_size=3, max_size=3))
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.just(0.0) | gap)
        room = blocks * block_tokens - options.decision_iterations + 1
        kv = draw(st.integers(1, max(1, room)))
        prompt = draw(st.integers(1, kv))
        prefix = draw(prefixes(kv + 1, usual_tokens))
        priority = draw(st.integers(0, 2))
        reused = draw(st.just(0) | st.integers(0, prompt - 1)) if reuse else 0
        share = draw(st.sampled_from([0.0, 1.0]) | st.floats(0, 1))
        tokens = Request(prompt, kv - prompt + 1, priority, prefix, reused, share)
        requests.append((now, tokens))
    ids = draw(st.permutations(range(len(requests))))
    return Case(profile, draw(st.integers(1, 3)), options, tuple(requests), tuple(ids))


@dataclass(frozen=True)
class Seen:
    """The observable state of a pool between two calls."""

    progress: tuple[dict[int, int], ...]
    status: tuple[tuple[int, ...], ...]
    cached: tuple[int, ...]
    """Tokens of texts that each instance has cached."""
    outstanding: int
    refused: bool


def seen(pool: Pool, instances: int, texts: list[Text], refused: bool) -> Seen:
    status = [pool.status(i) for i in range(instances)]
    return Seen(
        tuple(pool.progress(i) for i in range(instances)),
        tuple(tuple(getattr(one, name) for name in Status.__slots__) for one in status),
        tuple(pool.cached_tokens(i, text) for i in range(instances) for text in texts),
        pool.outstanding(),
        refused,
    )


def run(
    case: Case,
    kind: type[Pool],
    cuts: Sequence[float] = (),
    aborts: Sequence[tuple[float, int, bool]] = (),
    looks: list[Seen] | None = None,
    changes: Sequence[Change] = (),
    discards: Sequence[tuple[float, int]] = (),
) -> tuple[list[Event], Pool]:
    """Submit all requests and run to the end.

    Advances to each of `cuts` and aborts requests by their index on the way; those that are kept
    come again at the next cut, also if they are among `discards`. `looks` gets what was to be seen
    after each of these.
    """
    pool = case.pool(kind)
    out: list[Event] = []
    open_requests, kept = {}, set[int]()

    def submit(id: int, request: Request, now: float) -> None:
        open_requests[id] = request
        pool.submit(id, request, now)

    def advance(until: float) -> None:
        for left in pool.advance(until):
            out.append(tuple(getattr(left, name) for name in COMPLETION))
            if left.aborted and left.id in kept and until < inf:
                whole, had = open_requests[left.id], left.output_tokens
                tokens = whole.prompt_tokens + had, whole.output_tokens - had
                submit(left.id, Request(*tokens, whole.priority, whole.prefix), until)

    def look(refused: bool) -> None:
        if looks is not None:
            texts = [request.prefix for _, request in case.requests]
            looks.append(seen(pool, case.instances, texts, refused))

    for now, action, i in sorted(
        [
            *((now, SUBMIT, i) for i, (now, _) in enumerate(case.requests)),
            *((now, KEEP if keep else ABORT, i) for now, i, keep in aborts),
            *((cut, ADVANCE, 0) for cut in cuts),
            *((now, REPRIORITIZE, i) for i, (now, _) in enumerate(changes)),
            *((now, DISCARD, i) for now, i in discards),
        ]
    ):
        id, is_refused = case.ids[i % len(case.ids)], False
        if action == SUBMIT:
            submit(id, case.requests[i][1], now)
            continue
        if action == ADVANCE:
            advance(now)
        elif action == REPRIORITIZE:
            priorities = changes[i][1].items()
            pool.reprioritize({case.ids[j % len(case.ids)]: new for j, new in priorities}, now)
        elif action == DISCARD:
            pool.discard(id, now)
        else:
            try:
                pool.abort(id, now, keep=action == KEEP)
                (kept.add if action == KEEP else kept.discard)(id)
            except ValueError:
                is_refused = True
        look(is_refused)
    advance(inf)
    return out, pool
