"""The C++ pool against the specification, and laws of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import InstancePool, Profile, Request
from metropolis.sim.reference import ReferencePool

Pool = InstancePool | ReferencePool
Event = tuple[int, int, float, float]


@dataclass(frozen=True)
class Case:
    """A profile too small for its workload, so that everything happens."""

    profile: Profile
    instances: int
    prefix_reuse: bool
    requests: tuple[tuple[float, Request], ...]
    ids: tuple[int, ...]

    def pool(self, kind: type[Pool]) -> Pool:
        return kind(self.profile, self.instances, self.prefix_reuse)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_tokens = draw(st.sampled_from([1, 2, 4, 5, 16]))
    blocks = draw(st.integers(4, 24))
    ms = st.floats(0, 3, allow_nan=False)
    small = st.floats(0, 0.1, allow_nan=False)
    profile = Profile(
        w_ms=draw(st.floats(0.5, 20)), g_ms=draw(small), h_ms=draw(ms), b_ms=draw(small),
        k_ms=draw(small), q_ms=draw(st.floats(0, 0.01)), c_ms=draw(ms),
        k_mixed_ms=draw(small), c_once=draw(st.booleans()),
        kv_capacity_tokens=blocks * block_tokens, block_tokens=block_tokens,
        chunk_tokens=draw(st.integers(1, 2 * block_tokens * blocks)),
        max_sequences=draw(st.integers(1, 8)),
    )  # fmt: skip
    now = 0.0
    requests = []
    prefix_tokens = draw(st.lists(st.integers(0, 30), min_size=3, max_size=3))
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0.0, 0.0, 0.0]) | st.floats(0, 0.3))
        kv = draw(st.integers(1, blocks * block_tokens))
        prompt = draw(st.integers(1, kv))
        prefix_id = draw(st.integers(-1, 2))
        same = draw(st.integers(0, 9))  # mostly the prefix's own length
        prefix = draw(st.integers(0, 30)) if same == 0 else prefix_tokens[prefix_id]
        requests.append(
            (now, Request(prompt, kv - prompt + 1, draw(st.integers(0, 2)), prefix_id, prefix))
        )
    ids = draw(st.permutations(range(len(requests))))
    return Case(profile, draw(st.integers(1, 3)), draw(st.booleans()), tuple(requests), tuple(ids))


def run(case: Case, kind: type[Pool], cuts: tuple[float, ...] = ()) -> tuple[list[Event], Pool]:
    """Submits everything and runs to the end, advancing to each of `cuts` on the way."""
    pool = case.pool(kind)
    out: list[Event] = []

    def advance(until: float) -> None:
        out.extend(
            (c.id, c.instance, c.first_token_sim_s, c.last_token_sim_s) for c in pool.advance(until)
        )

    submissions = [(now, i) for i, (now, _) in enumerate(case.requests)]
    for now, i in sorted([*submissions, *((cut, -1) for cut in cuts)]):
        if i < 0:
            advance(now)
        else:
            pool.submit(case.ids[i], case.requests[i][1], now)
    advance(inf)
    return out, pool


@given(cases())
@settings(max_examples=400, deadline=None)
def test_native_equals_reference(case: Case) -> None:
    native, native_pool = run(case, InstancePool)
    expected, reference_pool = run(case, ReferencePool)
    assert native == expected
    assert native_pool.preemptions() == reference_pool.preemptions()
    assert [native_pool.busy_sim_s(i) for i in range(case.instances)] == [
        reference_pool.busy_sim_s(i) for i in range(case.instances)
    ]
