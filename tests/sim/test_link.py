"""Links between simulated instances, and the start of a prefill that needs a transfer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.sim.link import Links, Transfer, start_delay

SECONDS = st.floats(0, 100)


@given(
    st.lists(st.floats(1, 1000), min_size=2, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 1000), st.floats(0, 5)),
        max_size=20,
    ),
)
def test_a_link_carries_one_transfer_at_a_time_in_order(
    bytes_per_s: list[float], sent: list[tuple[int, int, int, float]]
) -> None:
    links, now_sim_s = Links(bytes_per_s), 0.0
    uses: dict[tuple[str, int], list[Transfer]] = {}
    for source, target, bytes_, later_s in sent:
        source, target = source % len(bytes_per_s), target % len(bytes_per_s)
        now_sim_s += later_s
        busy = [*uses.get(("out", source), []), *uses.get(("in", target), [])]
        used = links.begin(source, target, bytes_, now_sim_s)
        slower = min(bytes_per_s[source], bytes_per_s[target])
        assert used.arrived_sim_s - used.begun_sim_s == pytest.approx(bytes_ / slower)
        # as soon as both are free
        assert used.begun_sim_s == max([now_sim_s, *(one.arrived_sim_s for one in busy)])
        uses.setdefault(("out", source), []).append(used)
        uses.setdefault(("in", target), []).append(used)
    for transfers in uses.values():
        for before, after in pairwise(transfers):
            assert before.arrived_sim_s <= after.begun_sim_s


@given(SECONDS, SECONDS, st.floats(0, 1))
def test_overlap_hides_the_transfer_or_the_prefill(
    transfer_s: float, prefill_s: float, first: float
) -> None:
    first_s = transfer_s * first
    overlapped = start_delay(transfer_s, prefill_s, True, first_s)
    after = start_delay(transfer_s, prefill_s, False, first_s)
    assert first_s <= overlapped <= after == transfer_s
    ended_s = overlapped + prefill_s
    assert ended_s >= transfer_s * (1 - 1e-12)
    assert ended_s == pytest.approx(max(transfer_s, first_s + prefill_s))
