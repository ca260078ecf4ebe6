"""Plan files: what is written is read again, and every fault is one sentence."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.reuse.plan import (
    Band,
    Plan,
    PlanError,
    PlanPoint,
    check_bands,
    load_plan,
    load_plans,
    pareto_front,
    write_plan,
)
from tests.commands import Command
from tests.reuse.plans import LAYERS, bands, plans, points


@given(plans())
def test_a_plan_is_read_as_written(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(plan, path)
    assert load_plan(path) == plan
    assert load_plans(path.parent) == [plan]


@given(st.lists(points, max_size=12))
def test_the_front_has_the_points_that_none_beats(found: list[PlanPoint]) -> None:
    front = pareto_front(found)
    assert set(front) <= set(found)
    for one in found:
        better = [
            p for p in front if p.prefill_share <= one.prefill_share and p.quality >= one.quality
        ]
        assert better
    for one in front:
        assert not any(
            p.prefill_share <= one.prefill_share
            and p.quality >= one.quality
            and (p.prefill_share, p.quality) != (one.prefill_share, one.quality)
            for p in found
        )


@given(plans(), st.floats(0, 1))
def test_the_fastest_is_of_the_points_that_lose_little(plan: Plan, limit: float) -> None:
    least = plan.receiver_quality - limit - 1e-9  # equal but for rounding
    eligible = [p for p in plan.points if p.quality >= least]
    fastest = plan.fastest(limit)
    assert (fastest is None) == (not eligible)
    assert fastest is None or fastest.prefill_share == min(p.prefill_share for p in eligible)


@given(bands())
def test_bands_of_any_set_of_layers_pass(found: tuple[Band, ...]) -> None:
    check_bands(found, LAYERS, "here")


@given(st.lists(st.builds(Band, st.integers(-1, LAYERS), st.integers(-1, LAYERS)), max_size=3))
def test_bands_pass_only_if_they_are_apart_and_within(found: list[Band]) -> None:
    layers = [layer for band in found for layer in range(band.first, band.last + 1)]
    is_right = (
        all(band.first <= band.last for band in found)
        and all(0 <= layer < LAYERS for layer in layers)
        and all(b.first > a.last + 1 for a, b in pairwise(found))
    )
    if is_right:
        check_bands(found, LAYERS, "here")
    else:
        with pytest.raises(PlanError, match="here: the band"):
            check_bands(found, LAYERS, "here")


GOOD: dict[str, Any] = {
    "format": "metropolis reuse plan",
    "version": 1,
    "sender": "base",
    "receiver": "chat",
    "layers": 12,
    "metric": "exact match",
    "data": "heldout.jsonl",
    "prompt_tokens": 512,
    "sender_quality": 0.3,
    "receiver_quality": 1.0,
    "points": [
        {"recompute": [], "quality": 0.5, "prefill_share": 0.01},
        {"recompute": [[2, 6]], "quality": 0.97, "prefill_share": 0.44},
    ],
    "source": "by hand",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2; this release reads"),
        ({"format": "trace"}, "is 'trace' version 1"),
        ({"layers": "12"}, r"`\$.layers`"),
        ({"layers": 0}, "layers is 0"),
        ({"colour": 1}, "colour"),
        ({"sender": " "}, "sender is empty"),
        ({"sender": "chat"}, "must differ"),
        ({"sender_quality": -1}, "sender_quality is -1"),
        ({"receiver_quality": 46.2}, "receiver_quality is 46.2; it should be from 0 to 1"),
        ({"points": []}, "points is empty"),
        ({"points": [{"recompute": [[6, 2]], "quality": 0.9, "prefill_share": 0.4}]}, "recompute"),
        ({"points": [{"recompute": [[2]], "quality": 0.9, "prefill_share": 0.4}]}, "points"),
        ({"points": [{"recompute": [[2, 12]], "quality": 1, "prefill_share": 0.4}]}, "0 to 11"),
        ({"points": [{"recompute": [[0, 1], [2, 3]], "quality": 1, "prefill_share": 0}]}, "join"),
        ({"points": [{"recompute": [], "quality": 1.5, "prefill_share": 0.4}]}, "quality is 1.5"),
        ({"points": [{"recompute": [], "quality": 1, "prefill_share": -1}]}, "prefill_share is -1"),
        ({"points": GOOD["points"][::-1]}, "Pareto front"),
        ({"points": GOOD["points"][1:] * 2}, "Pareto front"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_sentence(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(GOOD))
    load_plan(path)
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(PlanError, match=said) as raised:
        load_plan(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b'{"a":1}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="is not a reuse plan"):
        load_plan(path)


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.json: cannot be read"):
        load_plans(tmp_path / "none.json")
    with pytest.raises(PlanError, match=r"has no \.json file"):
        load_plans(tmp_path)


def test_a_wrong_plan_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("before")
    wrong = Plan(**{**{k: v for k, v in GOOD.items() if k != "points"}, "points": ()})
    with pytest.raises(PlanError, match="points is empty"):
        write_plan(wrong, path)
    assert path.read_text() == "before"


def test_a_profile_overwrites_no_input(metropolis: Command, tmp_path: Path) -> None:
    for name in ("base", "chat"):
        (tmp_path / name).mkdir()
    for path in (tmp_path / "data.jsonl", tmp_path / "base" / "config.json"):
        path.write_text("{}")
        models = ("--sender", tmp_path / "base", "--receiver", tmp_path / "chat")
        options = (*models, "--data", tmp_path / "data.jsonl", "--out", path)
        assert "is read as input" in metropolis("reuse", "profile", *options).refusal
