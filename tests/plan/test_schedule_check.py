"""Schedules by hand: what a run refuses, in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.lengths import LengthDistribution
from metropolis.plan.machine import Machine
from metropolis.plan.running.schedule_check import check_schedule
from metropolis.plan.schedule import (
    STAGES_MAX,
    Schedule,
    ScheduleStage,
    StageNode,
    read_schedule,
    write_schedule,
)
from metropolis.plan.simulated_run import simulate_run
from metropolis.plan.timeline import Boundary, Timeline
from metropolis.plan.workload import columns_of, drawn
from metropolis.types import MetropolisError
from tests.commands import Command
from tests.plan.small_runs import schedule

MACHINE = Machine(gpus=4)
SMALL, LARGE = "mpt-7b", "llama-2-70b"
APPLICATION = Application(
    "app",
    {"s": tuple(Item(f"{key}", (9,)) for key in range(12))},
    (Node("small", SMALL, ("s",)), Node("large", LARGE, ("s",))),
)
GPUS = ((0, 1, 2, 3),)
GOOD = schedule({"small": ((0,), (2,))}, {"large": GPUS})
TOML = f"""
name = "app"
machine.gpus = 4
[sources.s]
count = 12
tokens = 9
[nodes.small]
model = "{SMALL}"
inputs = "s"
[nodes.large]
model = "{LARGE}"
inputs = "s"
[lengths.{SMALL}]
values = [9]
[lengths.{LARGE}]
values = [9]
"""
_LENGTHS = {model: LengthDistribution.of([9]) for model in (SMALL, LARGE)}
_WORKLOAD = drawn(columns_of(APPLICATION), _LENGTHS, MACHINE.shapes, np.random.default_rng(0))

REFUSED = {
    "stage 2 of the schedule runs 'large' with tp 1; on 4 x a100-80g llama-2-70b fits and can be "
    "divided with tp 2, 4": schedule({"small": ((0,),)}, {"large": ((0,),)}),
    "stage 1 of the schedule runs 'small' with tp 3; on 4 x a100-80g mpt-7b fits and can be "
    "divided with tp 1, 2, 4": schedule({"small": ((0, 1, 2),)}, {"large": GPUS}),
    "stage 1 of the schedule runs 'small' with tp 8": schedule(
        {"small": (tuple(range(8)),)}, {"large": GPUS}
    ),
    "stage 1 of the schedule runs 'small' on GPU 5; the GPUs of the machine are 0 to 3": schedule(
        {"small": ((0,), (5,))}, {"large": GPUS}
    ),
    "stage 1 of the schedule does not fit on 4 GPUs": schedule({"large": GPUS, "small": ((0,),)}),
    "stage 2 of the schedule has no nodes": schedule({"small": ((0,),)}, {}, {"large": GPUS}),
    "no stage of the schedule runs large": schedule({"small": ((0,),)}),
    "no stage of the schedule runs large, small": schedule(),
    "stage 1 of the schedule runs 'other'; app has no such node": schedule({"other": ((0,),)}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_schedule_that_cannot_run_is_refused(sentence: str) -> None:
    check_schedule(GOOD, APPLICATION, MACHINE)
    with pytest.raises(MetropolisError) as caught:
        check_schedule(REFUSED[sentence], APPLICATION, MACHINE)
    assert f"{caught.value}".startswith(sentence)


def test_a_stage_ends_by_one_of_its_nodes() -> None:
    first, *others = GOOD.stages
    first = replace(first, boundary=Boundary("other", 3))
    with pytest.raises(MetropolisError, match="stage 1 of the schedule ends by 'other', which it"):
        check_schedule(Schedule("by hand", (first, *others)), APPLICATION, MACHINE)


def test_stages_follow_each_other_and_are_not_too_many(tmp_path: Path) -> None:
    path, (first, second) = tmp_path / "schedule.json", GOOD.stages
    changed = {
        "stage 2 lasts from 0.5 to 2.0 s; it should begin at 1.0 s or later": (
            first,
            ScheduleStage(0.5, 2.0, second.nodes),
        ),
        "stage 2 lasts from 0.0 to 1.0 s": (second, first),
        f"has {STAGES_MAX + 1:,} stages": (ScheduleStage(0.0, 0.0, first.nodes),)
        * (STAGES_MAX + 1),
    }
    for sentence, stages in changed.items():
        write_schedule(path, "app", Schedule("by hand", stages))
        with pytest.raises(MetropolisError) as caught:
            read_schedule(path, "app")
        assert sentence in f"{caught.value}"


def file_text(**changes: object) -> str:
    """A good schedule file, with other fields of its first node."""
    stages = msgspec.to_builtins(GOOD.stages)
    stages[0]["nodes"]["small"] |= changes
    content = {"format": "metropolis schedule", "version": 1, "application": "app"}
    return json.dumps({**content, "schedule": {"method": "by hand", "stages": stages}})


HOSTILE = {
    "not a number": file_text(loaded_s=float("nan")),
    "infinite": file_text(loaded_s=float("inf")),
    "an overflow": file_text(loaded_s=77).replace("77", "1e999"),
    "copies": file_text(dp=10**9),
    "digits": file_text(dp=77).replace("77", "9" * 5000),
    "negative": file_text(dp=-1, gpus=[]),
    "lists": "[" * 100_000,
    "objects": file_text()[:-1] + ', "x": ' + '{"a": ' * 1_000_000 + "1" + "}" * 1_000_001,
    "deep GPUs": file_text(gpus=77).replace("77", "[" * 100_000 + "]" * 100_000),
    "nothing": "",
    "null": "null",
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("name", ["show", "run"])
def test_a_hostile_file_ends_in_a_sentence(
    metropolis: Command, tmp_path: Path, what: str, name: str
) -> None:
    path, application = tmp_path / "schedule.json", tmp_path / "app.toml"
    application.write_text(TOML)
    words = {"show": [path], "run": [application, "--simulate", "--schedule", path]}[name]

    path.write_text(file_text())
    said = metropolis("plan", name, *words)
    assert (said.status, said.err) == (0, "")
    path.write_text(HOSTILE[what])
    error = metropolis("plan", name, *words).refusal
    assert error.count("\n") == 1
    assert len(error) < 400 + 2 * len(str(path))


PLANS = {"small": [(1, 1), (2, 1), (1, 2), (3, 1)], "large": [(1, 2), (1, 2), (1, 4), (1, 1)]}


@st.composite
def stages(draw: st.DrawFn) -> ScheduleStage:
    """A stage of a second with random plans, of which many are valid."""
    nodes, free = {}, iter(range(99))
    for name in draw(st.sampled_from([("small",), ("large",), ("small", "large")])):
        dp, tp = draw(st.sampled_from(PLANS[name]))
        gpus = tuple(tuple(next(free) for _ in range(tp)) for _ in range(dp))
        nodes[name] = StageNode(dp, tp, gpus, draw(st.booleans()), 0.5, draw(st.booleans()))
    boundaries = st.builds(Boundary, st.sampled_from(["small", "large"]), st.integers(0, 15))
    return ScheduleStage(0.0, 0.0, nodes, draw(st.none() | boundaries))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(stages(), min_size=2, max_size=3))
def test_what_passes_the_checks_runs_to_its_end(
    tmp_path: Path, drawn_stages: list[ScheduleStage]
) -> None:
    path = tmp_path / "schedule.json"
    write_schedule(path, "app", Schedule("by hand", tuple(drawn_stages)))
    try:
        planned = read_schedule(path, "app")
        check_schedule(planned, APPLICATION, MACHINE)
    except MetropolisError:
        return
    run = simulate_run(Timeline(MACHINE, _WORKLOAD), planned)
    finished = [name for stage in run.stages for name, node in stage.nodes.items() if node.finishes]
    assert sorted(finished) == ["large", "small"]
