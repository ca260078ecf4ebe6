"""Packing into time slots, against the same done slot by slot in plain Python."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.base import Fleet, InstanceSpec
from metropolis.dispatch.kairos import NEAR, SLOT_S, UNKNOWN_S, KairosPacking
from metropolis.policy.base import QueuedRequest, ServedRequest

FLEET = Fleet.uniform(count=2, capacity_tokens=1000, tokens_per_s=20.0)
UNEQUAL = Fleet((InstanceSpec(1000, 20.0), InstanceSpec(400, 5.0), InstanceSpec(2000, 80.0)))


def request(number: int, prompt_tokens: int) -> QueuedRequest:
    return QueuedRequest(number, "p", f"function {number}", prompt_tokens, 0.0, 0.0)


class Slow:
    """Every request a Counter of slot -> tokens."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, Counter[int]]] = {}
        self.placed: dict[int, tuple[int, int]] = {}
        """Slot and prompt tokens by request."""
        self.last: dict[int, int] = {}
        """The latest request of each instance."""

    def needed(self, prompt_tokens: int, tokens_per_s: float, now_s: float) -> Counter[int]:
        first = int(now_s / SLOT_S)
        slots = int(UNKNOWN_S / SLOT_S) + 1
        grown = (int(tokens_per_s * SLOT_S * (i + 1)) for i in range(slots))
        return Counter({first + i: prompt_tokens + more for i, more in enumerate(grown)})

    def peak(self, instance: int, needed: Counter[int], now_s: float) -> int:
        total = Counter(needed)
        for where, tokens in self.held.values():
            if where == instance:
                total.update(tokens)
        return max(tokens for slot, tokens in total.items() if slot >= int(now_s / SLOT_S))

    def extend(self, fleet: Fleet, now_s: float) -> None:
        """Requests of unknown functions that overrun are expected to last half as long again."""
        now = int(now_s / SLOT_S)
        for number, (where, tokens) in self.held.items():
            if max(tokens) < now:
                placed, prompt_tokens = self.placed[number]
                lasted = now - placed
                speed = fleet.instances[where].tokens_per_s
                for slot in range(now, now + int(0.5 * lasted) + 1):
                    grown = int(speed * SLOT_S * (slot - placed + 1))
                    tokens[slot] = prompt_tokens + grown

    def is_free(self, instance: int, now_s: float) -> bool:
        now = int(now_s / SLOT_S)
        return not any(where == instance and max(t) >= now for where, t in self.held.values())


@pytest.mark.parametrize("fleet", [FLEET, UNEQUAL], ids=["equal", "unequal"])
@given(st.data())
def test_a_request_goes_where_the_peak_is_lowest_or_waits(
    fleet: Fleet, data: st.DataObject
) -> None:
    fast, slow, now_s = KairosPacking(fleet), Slow(), 0.0
    for number in range(data.draw(st.integers(1, 25))):
        now_s += data.draw(st.sampled_from([0.0, 0.3, 2.0, 30.0]))
        slow.extend(fleet, now_s)
        if slow.held and data.draw(st.booleans()):
            ended = data.draw(st.sampled_from(sorted(slow.held)))
            instance, _ = slow.held.pop(ended)
            fast.completed(ServedRequest(request(ended, 1), instance, 0.0, now_s, 1))
            continue
        asked = request(number, data.draw(st.integers(1, 1200)))
        needed = [
            slow.needed(asked.prompt_tokens, each.tokens_per_s, now_s) for each in fleet.instances
        ]
        shares = [
            slow.peak(i, needed[i], now_s) / each.capacity_tokens
            for i, each in enumerate(fleet.instances)
        ]
        is_idle = all(slow.is_free(instance, now_s) for instance in range(len(fleet)))
        tolerance = 0.0 if is_idle else NEAR
        near = max(min(shares), min(min(shares) + tolerance, 1.0))
        low = [instance for instance, share in enumerate(shares) if share <= near]
        best = min(low, key=lambda instance: slow.last.get(instance, -1))
        fits = shares[best] <= 1 or slow.is_free(best, now_s)
        assert fast.place(asked, now_s) == (best if fits else None)
        if fits:
            slow.held[number], slow.last[best] = (best, needed[best]), number
            slow.placed[number] = int(now_s / SLOT_S), asked.prompt_tokens


def test_a_burst_is_spread_over_instances_with_about_as_low_a_peak() -> None:
    packing = KairosPacking(Fleet.uniform(3, 100_000, 20.0))
    packing.place(request(0, 4000), 0.0)  # less than a twentieth of the memory
    assert [packing.place(request(n, 10), 0.0) for n in range(1, 6)] == [1, 2, 0, 1, 2]
    packing.place(request(6, 9000), 0.0)
    assert [packing.place(request(n, 10), 0.0) for n in range(7, 10)] == [1, 2, 1]


def test_an_instance_that_preempted_takes_nothing_until_one_has_left() -> None:
    packing = KairosPacking(FLEET)
    first = packing.place(request(0, 10), 0.0)
    assert first == 0
    packing.preempted(0, 0.1)
    assert [packing.place(request(n, 10), 0.2) for n in (1, 2, 3)] == [1, 1, 1]
    packing.preempted(1, 0.3)
    assert packing.place(request(4, 10), 0.4) is None
    packing.completed(ServedRequest(request(0, 10), 0, 0.0, 0.5, 5))
    assert packing.place(request(4, 10), 0.6) == 0


def test_what_a_function_takes_is_learned() -> None:
    packing = KairosPacking(Fleet.uniform(1, 1000, 20.0))

    def same(number: int) -> QueuedRequest:
        return QueuedRequest(number, "p", "plan", 300, 0.0, 0.0)

    for number in range(16):
        packing.place(same(number), float(number))
        packing.completed(ServedRequest(same(number), 0, number, number + 0.6, 5))
    # 300 + 20 tokens each for a second: three fit where unknown ones (300 + 210) would not
    assert [packing.place(same(n), 100.0) for n in range(20, 24)] == [0, 0, 0, None]


def test_a_request_that_overruns_keeps_its_memory_until_it_leaves() -> None:
    packing = KairosPacking(Fleet.uniform(1, 1000, 20.0))
    assert packing.place(request(0, 600), 0.0) == 0
    for now_s in (UNKNOWN_S + 5, 10 * UNKNOWN_S, 100 * UNKNOWN_S):
        assert packing.place(request(1, 600), now_s) is None
    packing.completed(ServedRequest(request(0, 600), 0, 0.0, 1001.0, 5))
    assert packing.place(request(1, 600), 1001.0) == 0


def test_a_request_that_overruns_is_expected_to_last_as_the_longer_ones_did() -> None:
    packing = KairosPacking(Fleet.uniform(1, 1000, 20.0))

    def plan(number: int) -> QueuedRequest:
        return QueuedRequest(number, "p", "plan", 300, 0.0, 0.0)

    for number in range(32):
        packing.place(plan(number), 0.0)
        packing.completed(ServedRequest(plan(number), 0, 0.0, (1.0, 21.0)[number % 2], 5))
    assert packing.place(plan(100), 100.0) == 0  # until 111
    unknown = request(101, 200)  # for 10 seconds: 400 tokens at the end
    assert packing.place(unknown, 112.0) is None  # beside up to 720, until 121
    packing.completed(ServedRequest(plan(100), 0, 100.0, 112.5, 5))
    assert packing.place(unknown, 112.5) == 0
