"""Charts show what schedules say, in text and as figures."""

from __future__ import annotations

import string
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from metropolis.plan.gantt import IDLE, LOADING, bars_of, gantt_text, legend, nodes_of
from metropolis.plan.plots import gantt
from metropolis.plan.schedule import Schedule, ScheduleStage, StageNode

GPUS = 4
NODES = ["a", "b", "c"]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Stages one after another, whose nodes continue on the same GPUs or are loaded."""
    ends = sorted(draw(st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True)))
    stages, before = list[ScheduleStage](), dict[str, StageNode]()
    for begins_s, ends_s in pairwise([0, *ends]):
        continuing = draw(st.sets(st.sampled_from(sorted(before)))) if before else set[str]()
        nodes = {
            name: StageNode(node.dp, node.tp, node.gpus, False, node.loaded_s, draw(st.booleans()))
            for name, node in before.items()
            if name in continuing
        }
        free = [gpu for gpu in range(GPUS) if all((gpu,) not in n.gpus for n in nodes.values())]
        for name in NODES:
            if name not in nodes and free:
                count = draw(st.integers(0, len(free)))
                copies = tuple((free.pop(0),) for _ in range(count))
                if copies:
                    loaded_s = begins_s + draw(st.integers(0, 30))
                    nodes[name] = StageNode(count, 1, copies, True, loaded_s, False)
        stages.append(ScheduleStage(begins_s, ends_s, nodes))
        before = nodes
    return Schedule("method", tuple(stages))


def expected_character(schedule: Schedule, nodes: list[str], gpu: int, time_s: float) -> str:
    for stage in schedule.stages:
        for name, node in stage.nodes.items():
            if stage.begins_s <= time_s < stage.ends_s and (gpu,) in node.gpus:
                letter = string.ascii_uppercase[nodes.index(name)]
                return LOADING if time_s < node.loaded_s else letter
    return IDLE


@given(schedules(), st.integers(30, 90), st.integers(0, 100))
def test_every_character_is_what_the_gpu_does_at_that_time(
    schedule: Schedule, width: int, ends_s: int
) -> None:
    nodes = nodes_of([schedule])
    lines = gantt_text(schedule, nodes, width, GPUS, ends_s).plain.split("\n")
    assert len(lines) == GPUS + 1
    ends_s = max(ends_s, int(schedule.ends_s))
    for gpu, line in enumerate(lines[:GPUS]):
        assert len(line) == width
        margin, _, chart = line.partition("│")
        assert margin == f"GPU {gpu} "
        chart = chart.removesuffix("│")
        expected = [
            expected_character(schedule, nodes, gpu, (column + 0.5) / len(chart) * ends_s)
            for column in range(len(chart))
        ]
        assert chart == "".join(expected)
    assert len(lines[GPUS]) <= width
    assert lines[GPUS].split()[:2] == ["0", "s"]


@given(schedules())
def test_bars_and_figures_have_the_seconds_of_the_stages(schedule: Schedule) -> None:
    seconds = dict.fromkeys(NODES, 0.0)
    for stage in schedule.stages:
        for name, node in stage.nodes.items():
            seconds[name] += (stage.ends_s - stage.begins_s) * node.dp
    drawn = dict.fromkeys(NODES, 0.0)
    for bar in bars_of(schedule):
        drawn[bar.node] += (bar.ends_s - bar.begins_s) * len(bar.all_gpus)
    assert drawn == seconds
    for gpu in range(GPUS):
        own = [bar for bar in bars_of(schedule) if gpu in bar.all_gpus]
        assert all(first.ends_s <= second.begins_s for first, second in pairwise(own))


def test_a_node_that_continues_is_one_bar_and_a_reloaded_one_two() -> None:
    def stage(begins_s: float, loads: bool, loaded_s: float) -> ScheduleStage:
        node = StageNode(1, 2, ((0, 1),), loads, loaded_s, False)
        return ScheduleStage(begins_s, begins_s + 10, {"a": node})

    stages = (stage(0, True, 4), stage(10, False, 4), stage(20, True, 24))
    bars = bars_of(Schedule("method", stages))
    assert [(bar.begins_s, bar.loaded_s, bar.ends_s) for bar in bars] == [(0, 4, 20), (20, 24, 30)]
    figure = gantt({"planned": Schedule("method", stages), "actual": Schedule("x", ())}, "title")
    planned, actual = figure.axes
    boxes = [(patch.get_x(), patch.get_width(), patch.get_height()) for patch in planned.patches]
    assert boxes == [(0, 4, 1.9), (4, 16, 1.9), (20, 4, 1.9), (24, 6, 1.9)]
    assert not actual.patches


def test_many_nodes_have_letters_in_lines_of_the_width() -> None:
    nodes = [f"node_{number}" for number in range(60)]
    lines = legend(nodes, 50).plain.split("\n")
    assert 40 < max(map(len, lines)) <= 50
    assert not any(line.startswith(" ") for line in lines)
    shown = [entry.split() for line in lines for entry in line.split("   ") if entry.strip()]
    assert [mark for mark, _ in shown[:52]] == list(string.ascii_uppercase + string.ascii_lowercase)
    assert shown[52:] == [["#", name] for name in nodes[52:]] + [
        [LOADING, "loading"],
        [IDLE, "idle"],
    ]
