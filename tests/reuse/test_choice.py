"""What reuse chooses: the conformance suite, and the rules by brute force."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metropolis.policy.faults import PluginError
from metropolis.policy.named import REUSES, named
from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest, Reuse
from metropolis.reuse.check import BrokenReuseError, check_reuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import ExactReuse, PrefixReuse
from metropolis.reuse.plan import Band, Plan, PlanPoint, transitions, write_plan
from metropolis.types import MetropolisError
from tests.reuse.plans import LAYERS, caches, placed_requests, plans, request_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_reuse"
OFFERS = list[CachedPrefix]
PLAN = Plan(
    sender="base",
    receiver="chat",
    layers=LAYERS,
    metric="exact match",
    data="by hand",
    prompt_tokens=1000,
    sender_quality=0.2,
    receiver_quality=1.0,
    points=(
        PlanPoint((), 0.5, 0.0),
        PlanPoint((Band(4, 6),), 0.9, 0.25),
        PlanPoint((Band(2, 6),), 0.99, 0.4),
        PlanPoint((Band(0, 6),), 1.0, 0.6),
    ),
    source="by hand",
)


@given(plans(), st.floats(0, 1), st.sampled_from([0.0, 0.5, 3.0]))
def test_droidspeak_keeps_the_interface(plan: Plan, loss: float, ttft_s: float) -> None:
    check_reuse(lambda: DroidSpeak([plan], loss, ttft_s), layers=LAYERS)


def test_the_built_in_reuses_keep_the_interface(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "plan.json")
    for text in (
        "none", "prefix", "prefix:remote=true", "exact:sender=base,receivers=chat/plan",
        "exact:sender=base,receivers=chat,own_tokens=20",
        f"droidspeak:plans={tmp_path / 'plan.json'},loss=0.05", f"droidspeak:plans={tmp_path}",
    ):  # fmt: skip
        check_reuse(named(REUSES, text), models=("base", "chat", "plan"), layers=LAYERS)


@given(plans(), st.floats(0, 1), placed_requests(), caches)
def test_droidspeak_saves_most_within_the_loss(
    plan: Plan, loss: float, placed: PlacedRequest, offered: OFFERS
) -> None:
    """Brute force: every cache with every point that is allowed."""
    own = placed.own_tokens(offered)
    allowed = []
    for cache in offered:
        tokens = min(cache.tokens, placed.request.prompt_tokens - 1)
        usable = [
            Reuse(cache, tokens, point.recompute, point.prefill_share)
            for point in plan.points
            if point.quality >= plan.receiver_quality - loss - 1e-9
            and transitions(point.recompute) <= cache.input_layers
            and (cache.model, placed.request.model) == ("base", "chat")
            and tokens > own
        ]
        # Of one cache the fastest point counts, even if copying more layers does not pay.
        allowed += [each for each in usable[:1] if is_worth_its_copy(placed, each, own)]
    chosen = DroidSpeak([plan], loss).choose(placed, offered)
    assert (chosen is None) == (not allowed)
    if chosen is not None:
        assert chosen in allowed
        most = max(saved_tokens(each, own) for each in allowed)
        assert saved_tokens(chosen, own) == most
        equal = [each for each in allowed if saved_tokens(each, own) == most]
        if any(each.cache.instance == placed.instance for each in equal):
            assert chosen.cache.instance == placed.instance


def saved_tokens(reuse: Reuse, own: int) -> float:
    """The tokens whose prefill is saved."""
    return (reuse.tokens - own) * (1 - reuse.prefill_share)


def is_worth_its_copy(placed: PlacedRequest, reuse: Reuse, own: int) -> bool:
    """Whether copying takes less time than it saves; true if a figure is not known."""
    cache = reuse.cache
    if placed.prefill_s is None or placed.shape is None or cache.link_bytes_per_s is None:
        return True
    layers = LAYERS - sum(band.last - band.first + 1 for band in reuse.recompute)
    token_bytes = placed.shape.kv_bytes_per_token * layers // LAYERS
    token_bytes += placed.shape.input_bytes_per_token * sum(b.first > 0 for b in reuse.recompute)
    moved = 0 if cache.instance == placed.instance else token_bytes * (reuse.tokens - own)
    saved_s = placed.prefill_s / placed.request.prompt_tokens * saved_tokens(reuse, own)
    return moved / cache.link_bytes_per_s < saved_s


@pytest.mark.parametrize(
    ("ttft_s", "share"), [(0.0, 0.4), (0.3, 0.4), (0.5, 0.4), (0.7, 0.6), (0.99, 0.6), (1.0, None)]
)
def test_a_target_of_latency_takes_the_best_point_that_meets_it(
    ttft_s: float, share: float | None
) -> None:
    """A prefill of all layers takes 1 s, and nearly the whole prompt is in the cache."""
    placed = PlacedRequest(request_for("chat", 100_001), 0, 1.0)
    cache = CachedPrefix("base", 100_000, 0, frozenset(range(LAYERS)))
    chosen = DroidSpeak([PLAN], ttft_s=ttft_s).choose(placed, [cache])
    assert (chosen and chosen.prefill_share) == share


def test_a_cache_without_the_inputs_serves_only_bands_from_the_embeddings() -> None:
    placed = PlacedRequest(request_for("chat", 1000), 0)
    chosen = DroidSpeak([PLAN]).choose(placed, [CachedPrefix("base", 900, 0)])
    assert chosen is not None
    assert chosen.recompute == (Band(0, 6),)


def test_moved_bytes_are_those_of_reused_layers_and_inputs() -> None:
    placed = PlacedRequest(request_for("chat", 1000), 0, shape=CacheShape(LAYERS, 12_000, 700))
    bands = (Band(0, 1), Band(4, 5))
    there = Reuse(CachedPrefix("base", 900, 1, frozenset({4})), 900, bands, 0.3)
    assert there.moved_bytes(placed, 100) == 800 * (12_000 * 8 // 12 + 700)
    here = Reuse(CachedPrefix("base", 900, 0, frozenset({4})), 900, bands, 0.3)
    assert here.moved_bytes(placed, 100) == 0


@given(placed_requests(), caches, st.integers(0, 500))
def test_exact_leaves_the_adapters_own_tokens(
    placed: PlacedRequest, offered: OFFERS, own_tokens: int
) -> None:
    exact = ExactReuse("base", ("chat",), own_tokens)
    chosen = exact.choose(placed, offered)
    if chosen is not None:
        assert chosen.tokens <= placed.request.prompt_tokens - max(1, own_tokens)
        assert (chosen.cache.model, placed.request.model) == ("base", "chat")
        assert chosen.tokens > placed.own_tokens(offered)


@given(placed_requests(), caches)
def test_prefix_copies_the_same_model_only(placed: PlacedRequest, offered: OFFERS) -> None:
    assert PrefixReuse().choose(placed, offered) is None
    chosen = PrefixReuse(remote=True).choose(placed, offered)
    assert chosen is None or chosen.cache.model == placed.request.model


def test_a_model_that_receives_never_sends() -> None:
    with pytest.raises(MetropolisError, match="'chat' is the receiver of one plan and the sender"):
        DroidSpeak([PLAN, replace(PLAN, sender="chat", receiver="plan")])
    with pytest.raises(MetropolisError, match="two plans are for 'base' and 'chat'"):
        DroidSpeak([PLAN, PLAN])
    DroidSpeak([PLAN, replace(PLAN, receiver="plan")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("droidspeak", "name a plan file or a folder of plans: plans=PATH"),
        ("droidspeak:plans=none.json", "none.json: cannot be read"),
        ("droidspeak:plans=none.json,loss=much", "option loss is 'much'"),
        ("exact", "name the base and its adapters"),
        ("exact:sender=a,receivers=a/b", "'a' is both sender and receiver"),
        ("exact:sender=a,receivers=b,own_tokens=-1", "own_tokens is -1"),
        ("droidspeek", "did you mean 'droidspeak'"),
    ],
)
def test_wrong_options(text: str, said: str) -> None:
    with pytest.raises(MetropolisError, match=said):
        named(REUSES, text)()


@pytest.mark.parametrize(("loss", "ttft_s"), [(-0.1, 0), (1.1, 0), (0, -1), (0, float("inf"))])
def test_options_out_of_range(loss: float, ttft_s: float) -> None:
    with pytest.raises(MetropolisError, match="it should be"):
        DroidSpeak([PLAN], loss, ttft_s)


class Lending(CacheReuse):
    """Chooses as told."""

    def __init__(self, choose: Callable[[PlacedRequest, CachedPrefix], object]) -> None:
        self._choose = choose

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        return self._choose(placed, caches[0]) if caches else None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda placed, cache: 7, "it should be a Reuse or None"),
        (lambda placed, cache: Reuse(CachedPrefix("x", 9, 0), 1), "it was not offered"),
        (lambda placed, cache: Reuse(cache, cache.tokens + 1), "it should be from 1 to"),
        (lambda placed, cache: Reuse(cache, placed.request.prompt_tokens), "from 1 to"),
        (lambda placed, cache: Reuse(cache, 1, (), 1.5), "prefill_share 1.5"),
        (lambda placed, cache: Reuse(cache, 1, (Band(3, 4),), 0.5), "layer 3, whose inputs"),
        (lambda placed, cache: Reuse(cache, 1, (Band(0, 99),), 0.5), "not within the layers"),
        (lambda placed, cache: 1 / 0, "division by zero"),
        (lambda placed, cache: Reuse(cache, 1, (), "half"), "prefill_share 'half'"),
        (lambda placed, cache: Reuse(cache, 1, (), True), "prefill_share True"),
        (lambda placed, cache: Reuse(cache, 1, None, 0.5), "chose the bands None"),
        (lambda placed, cache: Reuse(cache, 1, ((0, 3),), 0.5), "a tuple of Band"),
        (lambda placed, cache: Reuse(cache, 1, (Band("a", "b"),), 0.5), "a tuple of Band"),
    ],
)
def test_faults_are_named(
    choose: Callable[[PlacedRequest, CachedPrefix], object], said: str
) -> None:
    with pytest.raises(PluginError, match=rf"the reuse Lending .*{said}"):
        check_reuse(lambda: Lending(choose))


class Chaining(Lending):
    """Starts from anybody's cache."""

    def __init__(self) -> None:
        super().__init__(
            lambda placed, cache: Reuse(cache, 1) if placed.request.prompt_tokens > 1 else None
        )


def test_a_plan_without_a_point_within_the_loss_is_refused(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "plan.json")
    text = f"droidspeak:plans={tmp_path / 'plan.json'},loss"
    named(REUSES, f"{text}=0")()
    write_plan(replace(PLAN, points=PLAN.points[:2]), tmp_path / "plan.json")
    with pytest.raises(MetropolisError, match=r"loses at most 0.02 .* the best loses 0.1: give"):
        named(REUSES, f"{text}=0.02")()
    named(REUSES, f"{text}=0.1")()


@given(st.floats(0, 1, exclude_max=True))
def test_the_loss_that_a_refusal_names_is_enough(quality: float) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        write_plan(replace(PLAN, points=(PlanPoint((), quality, 0.0),)), path)
        try:
            named(REUSES, f"droidspeak:plans={path},loss=0")()
        except MetropolisError as refused:
            enough = re.search(r"give (loss=\S+) or more", f"{refused}")
            assert enough is not None
            named(REUSES, f"droidspeak:plans={path},{enough[1]}")()


def test_a_receiver_must_be_told() -> None:
    with pytest.raises(BrokenReuseError, match="must be among the receivers"):
        check_reuse(Chaining)
    with pytest.raises(MetropolisError, match="is not callable"):
        check_reuse("droidspeak")  # type: ignore[arg-type]
    with pytest.raises(MetropolisError, match="models is empty"):
        check_reuse(Chaining, models=())


def test_the_example_keeps_the_interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "own_reuse.py", tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    check_reuse(named(REUSES, f"{tmp_path / 'own_reuse.py'}:FirstLayers"))
    with pytest.raises(MetropolisError, match="layers is 0"):
        named(REUSES, f"{tmp_path / 'own_reuse.py'}:FirstLayers:layers=0")()
