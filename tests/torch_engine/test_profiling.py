"""Profiles of pairs: which bands are measured, prefill shares, the plan, figures."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metropolis.reuse.plan import Band, check_plan
from metropolis.torch_engine import timing
from metropolis.torch_engine.evaluation import own_quality, reuse_qualities
from metropolis.torch_engine.examples import tokenize
from metropolis.torch_engine.model import Model
from metropolis.torch_engine.prefill import NOTHING, Start
from metropolis.torch_engine.profiling import Profile, best_by_layers, layer_differences, profile
from metropolis.torch_engine.quality import exact_match
from metropolis.torch_engine.timing import prefill_shares
from tests.torch_engine.models import LAYERS, prompts
from tests.torch_engine.pairs import examples, pair

SENDER, RECEIVER = pair()
DATA = tokenize(examples(RECEIVER, contexts=2), SENDER, RECEIVER, "here")
EVERY = [Band(first, last - 1) for first, last in combinations(range(LAYERS + 1), 2)]


@pytest.fixture(scope="module")
def found() -> Profile:
    return profile(SENDER, RECEIVER, DATA, "exact_match", "data.jsonl")


def test_every_band_is_evaluated(found: Profile) -> None:
    choices = [point.recompute for point in found.points]
    assert sorted(choices) == sorted([(), *((band,) for band in EVERY)])
    expected = reuse_qualities(SENDER, RECEIVER, DATA, choices, exact_match)
    assert [point.quality for point in found.points] == expected


def test_the_plan_is_the_front_of_what_was_measured(found: Profile) -> None:
    plan = found.plan
    check_plan(plan, "here")
    assert plan.receiver_quality == own_quality(RECEIVER, DATA, exact_match) == 1
    assert plan.sender_quality == own_quality(SENDER, DATA, exact_match) < 1
    assert plan.prompt_tokens == len(DATA.typical.context) + len(DATA.typical.questions[0].tokens)
    assert {*plan.points} <= {*found.points}
    for point in found.points:
        assert any(
            one.prefill_share <= point.prefill_share and one.quality >= point.quality
            for one in plan.points
        )
    fastest = plan.fastest(0)
    assert fastest is not None
    assert fastest.quality == 1


@given(
    st.dictionaries(
        st.sampled_from([(), *((band,) for band in EVERY)]),
        st.sampled_from([0.0, 0.5, 1.0]),
        min_size=1,
    )
)
def test_the_best_bands_of_each_size_are_timed(qualities: dict[tuple[Band, ...], float]) -> None:
    best = best_by_layers(qualities)
    sizes = {bands: sum(map(len, bands)) for bands in qualities}
    assert list(best) == sorted({*sizes.values()})
    for bands, size in sizes.items():
        assert sizes[best[size]] == size
        assert qualities[best[size]] >= qualities[bands]


def test_shares_are_medians_of_ratios_within_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are those of a machine that slows down and once stalls."""
    timed: list[Start] = []

    def prefill_s(model: Model, tokens: torch.Tensor, start: Start = NOTHING) -> float:
        timed.append(start)
        repetition = (len(timed) - 1) // 3
        stalls = 50 if repetition == 2 and start is NOTHING else 1
        layers = sum(map(len, start.recompute)) if start.lent else LAYERS
        warm = 100 if repetition == 0 and start is not NOTHING else 1
        return layers * (1 + repetition) * stalls * warm

    monkeypatch.setattr(timing, "prefill_s", prefill_s)
    choices = [[Band(1, 2)], [Band(0, 2)]]
    advanced: list[int] = []
    prompt = prompts(1, 30)[0]
    shares = prefill_shares(SENDER, RECEIVER, prompt, 20, choices, advanced.append, repetitions=3)
    assert shares == [2 / LAYERS, 3 / LAYERS]
    assert len(advanced) == 4
    assert [start.recompute for start in timed] == [(), *choices] * 4
    assert all(part.tokens == 20 for start in timed for part in start.lent)
    timed.clear()
    assert prefill_shares(SENDER, RECEIVER, prompt, 20, choices, repetitions=1) == shares


def test_differences_of_caches_are_relative_to_the_sender() -> None:
    own = layer_differences(SENDER, SENDER, DATA)
    assert own == [(0, 0, 0)] * LAYERS
    (first, *_) = layer_differences(SENDER, RECEIVER, DATA)
    tokens = DATA.typical.context
    with torch.inference_mode():
        theirs, ours = (model.embed(tokens) for model in (SENDER, RECEIVER))
    assert first.inputs == pytest.approx(float((theirs - ours).norm() / theirs.norm()))
    assert min(first) > 0
