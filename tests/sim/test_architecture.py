"""Profiles derived from architectures."""

from __future__ import annotations

from itertools import pairwise

import pytest

from metropolis._core import InstancePool
from metropolis.sim.architecture import GPUS, architectures
from metropolis.sim.profiles import load_entry, load_profile
from metropolis.types import MetropolisError

COSTS = ("w_ms", "g_ms", "h_ms", "b_ms", "k_ms", "q_ms", "c_ms")


def test_the_formula_gives_back_the_measured_profile_of_one_card() -> None:
    derived, measured = (load_profile(f"llama-3-8b/{name}") for name in ("a100-80g-tp1", "a100"))
    for name in COSTS:
        assert getattr(derived, name) == pytest.approx(getattr(measured, name), rel=1e-9)
    assert derived.kv_capacity_tokens == pytest.approx(measured.kv_capacity_tokens, rel=1e-3)


def test_it_comes_near_the_measured_profile_of_four() -> None:
    """Only decoding comes near; prefills are slower: links beyond an NVLink pair are PCIe here."""
    derived, measured = (
        load_profile(f"llama-3-70b/{name}") for name in ("a100-80g-tp4", "a100-tp4")
    )
    for sequences in (1, 16, 64):
        times = [
            InstancePool.iteration_sim_s(each, sequences, 1000 * sequences)
            for each in (derived, measured)
        ]
        assert times[0] == pytest.approx(times[1], rel=0.15)
    assert derived.kv_capacity_tokens == pytest.approx(measured.kv_capacity_tokens, rel=0.01)


@pytest.mark.parametrize("model", architectures())
def test_more_cards_read_less_each_and_hold_more(model: str) -> None:
    shape = architectures()[model]
    found = []
    for count in (1, 2, 4, 8):
        name = f"{model}/a100-80g-tp{count}"
        if count * GPUS["a100-80g"].memory_bytes * 0.88 > shape.weight_bytes:
            found.append(load_entry(name))
        else:
            with pytest.raises(MetropolisError, match="cannot hold weights"):
                load_entry(name)
    for one in found:
        assert one.estimate
        assert one.layers == shape.layers
    for fewer, more in pairwise(found):
        assert more.profile.w_ms > fewer.profile.w_ms / 2  # all-reduces wait
        assert more.profile.k_ms <= fewer.profile.k_ms
        assert more.profile.kv_capacity_tokens > fewer.profile.kv_capacity_tokens
        assert more.tensor_parallel == 2 * fewer.tensor_parallel


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-2-70b/a100-80g-tp1", "cannot hold weights of 138.0 GB"),
        ("vicuna-13b/a100-80g-tp3", "40 heads cannot be divided among 3 GPUs"),
        ("vicuna-13b/a100-80g-tp0", "write -tp1 to -tp40"),
        pytest.param(
            f"vicuna-13b/a100-80g-tp{'9' * 5000}", "write -tp1 to -tp40", id="thousands of digits"
        ),
        ("vicuna-13b/h100-tp1", "there is no profile"),
    ],
)
def test_what_cannot_be_derived_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(MetropolisError, match=message):
        load_entry(name)
