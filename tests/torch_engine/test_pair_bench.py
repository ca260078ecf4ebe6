"""The measured section of `metropolis bench droidspeak`, on a small pair with random weights."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from metropolis.bench.droidspeak import pair as section
from metropolis.reuse.plan import Band, Plan, PlanError, PlanPoint
from metropolis.torch_engine.evaluation import own_quality, reuse_qualities
from metropolis.torch_engine.examples import load_examples, tokenize
from metropolis.torch_engine.prefill import all_inputs
from metropolis.torch_engine.quality import exact_match
from tests.torch_engine.models import LAYERS
from tests.torch_engine.pairs import pair, write_pair

WHOLE = (Band(0, LAYERS - 1),)
PLAN = Plan(
    sender="base", receiver="receiver", layers=LAYERS, metric="exact_match", data="other",
    prompt_tokens=40, sender_quality=0.1, receiver_quality=1.0, source="made up",
    points=(PlanPoint((), 0.3, 0.1), PlanPoint(WHOLE, 1.0, 0.9)),
)  # fmt: skip
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_pair(folder)
    (folder / "chat").rename(folder / "receiver")
    (folder / "data.jsonl").rename(folder / "test.jsonl")
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> Rows:
    steps: list[int] = []
    found = section.measure(folder, PLAN, True, steps.append)
    assert sum(steps) == section.runs(True)
    decoded: Rows = json.loads(json.dumps(found))
    return decoded


def of(rows: Rows, table: str) -> Rows:
    return [row for row in rows if row["table"] == table]


def test_qualities_are_those_of_the_systems(folder: Path, rows: Rows) -> None:
    sender, receiver = pair()
    told = load_examples(folder / "test.jsonl")
    data = tokenize(told, sender, receiver, "here")
    quality = {row["system"]: row["quality"] for row in of(rows, "table_2")}
    reused = reuse_qualities(sender, receiver, data, [(), all_inputs(LAYERS)], exact_match)
    assert quality == {
        "base": own_quality(sender, data, exact_match),
        "receiver": 1,
        "ours": 1,
        "all KV": reused[0],
        "all E": reused[1],
    }
    assert reused[0] < 1
    assert [row["quality"] for row in of(rows, "front")] == [reused[0], 1]


def test_every_band_of_its_own_cache_gives_equal_logits(rows: Rows) -> None:
    found = of(rows, "equality")
    assert [(row["tokens"], row["batch"]) for row in found] == [
        (64, 1),
        (64, 4),
        (128, 1),
        (128, 4),
    ]
    for row in found:
        assert row["bands"] == LAYERS * (LAYERS + 1) // 2
        assert row["largest_difference"] < 1e-9 * row["largest_logit"]


def test_the_size_of_inputs_is_relative_to_kv(rows: Rows) -> None:
    """Two of four heads have KV: a layer's keys and values are as large as its input."""
    shares = {row["system"]: row["relative_to_kv"] for row in of(rows, "input_overheads")}
    assert shares == {"ours": 0, "all E": pytest.approx((LAYERS - 1) / LAYERS)}


def test_the_tables_say_that_they_are_measured(rows: Rows) -> None:
    console = Console(file=StringIO(), width=200)
    section.show(rows, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert printed.count("Measured: ") == len(section.TABLES)
    assert "paper: MAmmoTH2, Math" in printed
    assert "0-4" in printed


def test_plans_that_do_not_fit_are_refused(folder: Path) -> None:
    def refused(**changes: Any) -> str:
        fields = {field: getattr(PLAN, field) for field in Plan.__struct_fields__}
        with pytest.raises(PlanError) as error:
            section.measure(folder, Plan(**{**fields, **changes}), True, lambda _: None)
        return str(error.value)

    assert "the plan is for 12 layers" in refused(layers=12)
    assert "no point that loses at most 0.02" in refused(points=PLAN.points[:1])
