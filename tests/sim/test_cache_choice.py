"""Simulated clusters whose instances host different models and reuse each other's caches."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis._core import InstancePool, Request
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.base import Policy, QueuedRequest, ServedRequest
from metropolis.policy.fixed import Fcfs
from metropolis.policy.named import POLICIES, named
from metropolis.reuse.base import CachedPrefix, CacheReuse, PlacedRequest, Reuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import NoReuse, PrefixReuse
from metropolis.reuse.plan import Band, Plan, PlanPoint
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.engines import SimulatedCluster
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.instance import Aborted, SimulatedInstance, SimulatedRequest, Start
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import load_entry

A100 = load_entry("llama-3-8b/a100")
BAND, SHARE, TOKENS = Band(10, 17), 0.3, 8000
TEXT = ((7, TOKENS),)
SLOW_GB_PER_S = 3.0
"""A copy takes longer than the prefill that is left, but less time than it saves."""


PLAN = Plan(
    sender="base",
    receiver="chat",
    layers=32,
    metric="exact match",
    data="none",
    prompt_tokens=TOKENS,
    sender_quality=0.1,
    receiver_quality=0.9,
    points=(PlanPoint((BAND,), 0.9, SHARE),),
    source="assumed",
)


def fleet(*models: str, link_gb_per_s: float = 25.0, max_sequences: int = 128) -> SimulatedFleet:
    profile = copy(A100.profile)
    profile.max_sequences = max_sequences
    entry = replace(A100, profile=profile, link_gb_per_s=link_gb_per_s)
    return SimulatedFleet(tuple(replace(entry, name=model, model=model) for model in models))


def cluster(choice: CacheChoice, policy: Policy | None = None) -> SimulatedCluster:
    dispatcher = LeastLoaded(choice.fleet.dispatcher_view())
    return SimulatedCluster(
        choice.fleet.profiles, policy or Fcfs(), dispatcher, PoolOptions(), inf, choice
    )


def serve(
    choice: CacheChoice, *calls: tuple[str, float], tokens: int = TOKENS + 1
) -> list[ServedRequest]:
    """Calls for models at times, each with the same text."""
    served, engines = list[ServedRequest](), cluster(choice)
    for number, (model, now_sim_s) in enumerate(calls):
        served += drained(engines, now_sim_s)
        request = QueuedRequest(
            *(number, f"{number}", "f", tokens, now_sim_s, now_sim_s), prefix=TEXT, model=model
        )
        engines.send(request, 2)
        engines.dispatch(now_sim_s)
    return served + drained(engines, inf)


def drained(engines: SimulatedCluster, until_sim_s: float) -> list[ServedRequest]:
    served = list[ServedRequest]()
    while (now_sim_s := engines.next_event_sim_s()) < until_sim_s:
        served += engines.advance(now_sim_s)
        engines.dispatch(now_sim_s)
    return served + (engines.advance(until_sim_s) if until_sim_s < inf else [])


def ttft_s(one: ServedRequest) -> float:
    assert one.first_token_s is not None
    return one.first_token_s - one.request.arrived_s


def prefill_s(reused_tokens: int = 0, share: float = 0.0) -> float:
    request = Request(TOKENS + 1, 1, 0, (), reused_tokens, share)
    return InstancePool.isolated_sim_s(A100.profile, request)


@pytest.mark.parametrize("overlapped", [True, False])
def test_a_receiver_starts_from_the_senders_cache_when_it_has_arrived(overlapped: bool) -> None:
    slow = fleet("base", "chat", link_gb_per_s=SLOW_GB_PER_S)
    choice = CacheChoice(DroidSpeak([PLAN]), slow, overlapped=overlapped)
    first, second = serve(choice, ("base", 0.0), ("chat", 100.0))
    assert ttft_s(first) == pytest.approx(prefill_s(), rel=1e-9)
    moved_bytes = TOKENS * (131_072 * 24 // 32 + 8192)
    transfer_s = moved_bytes / SLOW_GB_PER_S / 1e9
    left_s = prefill_s(TOKENS, SHARE)
    assert left_s < transfer_s < prefill_s() - left_s
    expected_s = transfer_s if overlapped else transfer_s + left_s
    assert ttft_s(second) == pytest.approx(expected_s, rel=1e-9)
    counts = choice.counts
    assert (counts.reused_tokens, counts.moved_bytes) == (TOKENS, moved_bytes)
    assert counts.hits == {("base", "chat"): 1}
    assert (counts.other_model_hits, counts.own_tokens) == (1, 0)


def test_over_a_fast_link_the_prefill_waits_for_the_inputs_alone() -> None:
    _, second = serve(
        CacheChoice(DroidSpeak([PLAN]), fleet("base", "chat")), ("base", 0.0), ("chat", 9.0)
    )
    inputs_s = TOKENS * 8192 / 25e9
    assert ttft_s(second) == pytest.approx(inputs_s + prefill_s(TOKENS, SHARE), rel=1e-9)


def test_a_transfer_waits_for_the_link() -> None:
    """Two receivers ask one sender at once; the second gets its copy after the first."""
    slow = fleet("base", "chat", "chat", link_gb_per_s=SLOW_GB_PER_S)
    choice = CacheChoice(DroidSpeak([PLAN]), slow)
    served = serve(choice, ("base", 0.0), ("chat", 100.0), ("chat", 100.0))
    transfer_s = choice.counts.moved_bytes / 2 / SLOW_GB_PER_S / 1e9
    assert [ttft_s(one) for one in served[1:]] == pytest.approx([transfer_s, 2 * transfer_s])


@pytest.mark.parametrize(
    ("reuse", "own_tokens", "moves"),
    [
        (NoReuse(), 0, False),
        (PrefixReuse(), TOKENS, False),
        (PrefixReuse(remote=True), TOKENS, True),
    ],
)
def test_reuse_of_the_same_model(reuse: CacheReuse, own_tokens: int, moves: bool) -> None:
    choice = CacheChoice(reuse, fleet("chat"))
    served = serve(choice, ("chat", 0.0), ("chat", 100.0))
    again_s = prefill_s(own_tokens) if own_tokens else prefill_s()
    assert [ttft_s(one) for one in served] == pytest.approx([prefill_s(), again_s], rel=1e-9)
    assert (choice.counts.own_tokens, choice.counts.moved_bytes) == (own_tokens, 0)

    choice = CacheChoice(reuse, fleet("chat", "chat"))
    # the third arrives while the second instance is the less loaded one
    served = serve(choice, ("chat", 0.0), ("chat", 100.0), ("chat", 100.0))
    copied = choice.counts.hits == {("chat", "chat"): 1}
    assert copied == moves == (choice.counts.moved_bytes == 131_072 * TOKENS)
    assert choice.counts.other_model_hits == 0
    if moves:
        layer_s = 131_072 // 32 * TOKENS / 25e9
        transfer_s, left_s = 131_072 * TOKENS / 25e9, prefill_s(TOKENS)
        assert ttft_s(served[2]) == pytest.approx(max(layer_s + left_s, transfer_s), rel=1e-9)


def test_a_receivers_cache_is_offered_to_itself_alone() -> None:
    offered: list[tuple[int, Sequence[CachedPrefix]]] = []

    class Watched(DroidSpeak):
        def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
            offered.append((placed.instance, caches))
            assert placed.request.model == ("base", "chat", "chat")[placed.instance]
            return super().choose(placed, caches)

    reuse = Watched([PLAN])
    calls = [("base", 0.0), ("chat", 20.0), ("base", 40.0), ("chat", 60.0), ("chat", 60.0)]
    serve(CacheChoice(reuse, fleet("base", "chat", "chat")), *calls)
    inputs = frozenset((BAND.first,))
    base = CachedPrefix("base", TOKENS, 0, inputs, 25e9)
    assert offered == [
        (1, [base]),
        (0, [base]),
        (1, [base, CachedPrefix("chat", TOKENS, 1, frozenset(), 25e9)]),
        (2, [base]),
    ]


def test_a_sender_has_less_room_because_it_keeps_inputs() -> None:
    choice = CacheChoice(DroidSpeak([PLAN]), fleet("base", "chat"))
    full = A100.profile.kv_capacity_tokens
    base = full * 131_072 // (131_072 + 8192)
    assert [each.kv_capacity_tokens for each in choice.fleet.profiles] == [base, full]
    view = choice.fleet.dispatcher_view()
    assert [each.capacity_tokens for each in view.instances] == [base, full]
    assert A100.profile.kv_capacity_tokens == full


class Everything(CacheReuse):
    """The longest cache of another instance, of any model, at a share."""

    def __init__(self, share: float) -> None:
        self._share = share

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        found = [each for each in caches if each.instance != placed.instance]
        best = max(found, key=lambda each: each.tokens, default=None)
        tokens = min(best.tokens, placed.request.prompt_tokens - 1) if best else 0
        return Reuse(best, tokens, (), self._share) if best and tokens > 0 else None


def workload(
    seed: int, choice: CacheChoice, policy: str
) -> tuple[dict[int, ServedRequest], dict[int, QueuedRequest]]:
    """Random calls for two models, of which some are cancelled or promoted; what was served."""
    draw, engines = Random(seed), cluster(choice, named(POLICIES, policy)())
    now_sim_s, served, left = 0.0, dict[int, ServedRequest](), dict[int, QueuedRequest]()

    def run_until(until_sim_s: float) -> None:
        for one in drained(engines, until_sim_s):
            assert one.request.id not in served
            assert one.output_tokens == 1 + one.request.id % 40
            served[one.request.id] = one

    for number in range(draw.randint(1, 25)):
        now_sim_s += draw.choice([0.0, 0.0, 0.01, 0.3])
        run_until(now_sim_s)
        prompt = draw.randint(1, 6000)
        prefix = ((draw.randrange(2), draw.randint(1, prompt)),)
        request = QueuedRequest(
            *(number, draw.choice("pqr"), "f", prompt, now_sim_s, now_sim_s),
            prefix=prefix,
            model=draw.choice(["base", "chat", None]),
            speculative=draw.random() < 0.3,
        )
        engines.send(request, 1 + number % 40)
        left[number] = request
        engines.dispatch(now_sim_s)
        open_ = [*(left.keys() - served.keys())]
        if open_ and draw.random() < 0.3:
            chosen = draw.choice(open_)
            if draw.random() < 0.5:
                engines.cancel(chosen, now_sim_s)
                del left[chosen]
            elif left[chosen].speculative:
                engines.promote(chosen, now_sim_s)
            engines.dispatch(now_sim_s)
    run_until(inf)
    engines.check_progress()
    return served, left


@given(
    st.integers(0, 1 << 30),
    st.sampled_from(["fcfs", "step", "atlas", "plas"]),
    st.sampled_from([1e-2, 1.0, 25.0]),
    st.floats(0, 1),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_request_completes_once_whatever_happens_during_transfers(
    seed: int, policy: str, link_gb_per_s: float, share: float, overlapped: bool
) -> None:
    models = "base", "chat", "base"
    instances = fleet(*models, link_gb_per_s=link_gb_per_s, max_sequences=2)
    choice = CacheChoice(Everything(share), instances, overlapped=overlapped)
    served, left = workload(seed, choice, policy)
    assert served.keys() == left.keys()
    for number, request in left.items():
        one = served[number]
        assert request.arrived_s <= one.started_s <= one.completed_s
        assert one.first_token_s is not None
        assert request.arrived_s < one.first_token_s <= one.completed_s
        if request.model:
            assert choice.fleet.instances[one.instance].model == request.model


@given(st.integers(0, 1 << 30), st.sampled_from(["fcfs", "atlas"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_reuse_that_saves_nothing_over_an_endless_link_changes_nothing(
    seed: int, policy: str, overlapped: bool
) -> None:
    instances = fleet("base", "chat", "base", link_gb_per_s=1e40)
    found = [
        workload(seed, CacheChoice(reuse, instances, overlapped=overlapped), policy)[0]
        for reuse in (PrefixReuse(), Everything(1.0))
    ]
    assert found[0] == found[1]


class Urgent(Fcfs):
    """Earlier steps preempt later ones."""

    preempts = True

    def rank(self, request: QueuedRequest) -> int:
        return request.step


def test_a_preempted_answer_resumes_without_reuse() -> None:
    asked = list[int]()

    class Watched(CacheChoice):
        def start(
            self, request: QueuedRequest, index: int, held_tokens: Sequence[int], now_sim_s: float
        ) -> Start:
            asked.append(request.id)
            return super().start(request, index, held_tokens, now_sim_s)

    choice = Watched(PrefixReuse(), fleet("base", max_sequences=1))
    engines, served = cluster(choice, Urgent()), list[ServedRequest]()
    for number, now_sim_s in enumerate((0.0, 5.0)):
        served += drained(engines, now_sim_s)
        request = QueuedRequest(
            *(number, "p", "f", TOKENS + 1, now_sim_s, now_sim_s), step=1 - number, prefix=TEXT
        )
        engines.send(request, 1000)
        engines.dispatch(now_sim_s)
    served += drained(engines, inf)
    assert [one.request.id for one in served] == [1, 0]
    assert engines.preemptions == 1
    assert asked == [0, 1]


def loading(ready_sim_s: float) -> tuple[SimulatedInstance, SimulatedRequest]:
    """An instance, and a request on it that starts from a cache that arrives then."""
    instance = SimulatedInstance(0, A100.profile, PoolOptions())
    request = SimulatedRequest(QueuedRequest(1, "p", "f", TOKENS + 1, 0.0, 0.0), 1)
    instance.submit(request, 0, 0.0, Start(TOKENS, SHARE, ready_sim_s))
    return instance, request


def test_service_does_not_count_what_was_reused() -> None:
    instance, _ = loading(0.1)
    before = SimulatedRequest(QueuedRequest(0, "p", "f", TOKENS + 1, 0.0, 0.0), 1)
    instance.submit(before, 0, 0.0, Start())
    assert instance.held_tokens == 2 * (TOKENS + 1)
    *_, last = instance.advance(100.0)
    assert isinstance(last, ServedRequest)
    assert last.request.id == 1
    assert ttft_s(last) > prefill_s()
    assert last.started_s == pytest.approx(ttft_s(last) - prefill_s(TOKENS, SHARE), rel=1e-9)


def test_a_request_may_leave_before_its_cache_has_arrived() -> None:
    instance, request = loading(5.0)
    assert instance.next_event_sim_s == 5.0
    instance.abort(1, 1.0)
    assert (instance.next_event_sim_s, instance.held_tokens) == (1.0, 0)
    instance.withdraw(1, 1.0)  # it is leaving already
    assert [*instance.advance(1.0)] == [Aborted(1, 1.0, 0)]
    instance.withdraw(1, 1.0)  # it has left
    assert instance.next_event_sim_s == inf
    # it can be placed here again, and cancelled
    for aborts, now_sim_s in ((False, 2.0), (True, 5.0)):
        instance.submit(request, 0, now_sim_s, Start(TOKENS, SHARE, now_sim_s + 4.0))
        if aborts:
            instance.abort(1, now_sim_s + 1.0)
        instance.cancel(1, now_sim_s + 1.0)
        assert [*instance.advance(now_sim_s + 2.0)] == []
        assert instance.next_event_sim_s == inf
