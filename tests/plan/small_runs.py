"""A small application, its schedule, and runs of it with stub servers as engines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from metropolis.plan.application import Application, Item, Node
from metropolis.plan.machine import Machine
from metropolis.plan.running.engine import Sampling
from metropolis.plan.running.engine_command import EngineCommand
from metropolis.plan.running.folder import RunFolder, RunRecord
from metropolis.plan.running.model_copy import EngineOptions
from metropolis.plan.running.runner import Reports, Runner
from metropolis.plan.schedule import Schedule, ScheduleStage, StageNode

MACHINE = Machine(gpus=4)
SAMPLING = Sampling()
TIMEOUT_S = 120.0
QUESTIONS, DOCUMENTS, PARTS = 12, 3, 3
APPLICATION = Application(
    "small",
    {
        "questions": tuple(Item(f"q{n}", (f"question {n}",)) for n in range(QUESTIONS)),
        "documents": tuple(
            Item(f"d{n}", tuple(f"part {p} of {n}" for p in range(PARTS))) for n in range(DOCUMENTS)
        ),
    },
    (
        Node("one", "vicuna-13b", ("questions",)),
        Node("two", "vicuna-13b", ("questions",)),  # the same model
        Node("judge", "chatglm3-6b", ("one", "two")),
        Node("summary", "alpaca-13b", ("documents",), chain=True, max_tokens=50),
    ),
)
REQUESTS = {"one": QUESTIONS, "two": QUESTIONS, "judge": QUESTIONS, "summary": DOCUMENTS * PARTS}
SEEDS = {
    SAMPLING.seed_of(name, index): (name, index)
    for name, count in REQUESTS.items()
    for index in range(count)
}


def schedule(*stages: dict[str, tuple[tuple[int, ...], ...]]) -> Schedule:
    """Stages of a second each; node -> GPUs of its copies."""
    made = []
    for number, stage in enumerate(stages):
        nodes = {
            name: StageNode(len(gpus), len(gpus[0]), gpus, True, number + 0.1, True)
            for name, gpus in stage.items()
        }
        made.append(ScheduleStage(number, number + 1, nodes))
    return Schedule("by hand", tuple(made))


SCHEDULE = schedule(
    {"one": ((2,), (3,)), "two": ((0, 1),)},
    {"two": ((0, 1),), "summary": ((2,),)},
    {"judge": ((0,), (1,)), "summary": ((2,),)},
)


def stub(folder: Path, mean_ms: float = 0) -> str:
    """The command of a stub server that logs to FOLDER/GPUS.log."""
    return (
        f"metropolis bench stub-server --mean-ms {mean_ms} --port {{port}} "
        f"--log {folder}/{{gpus}}.log"
    )


def run_small(
    folder: Path,
    command: str | dict[str, str],
    planned: Schedule | None = SCHEDULE,
    options: EngineOptions | None = None,
    meanwhile: Callable[[Runner], Awaitable[None]] | None = None,
) -> tuple[RunRecord, list[str]]:
    """Run to the end, in `folder`/out; returns the record, and what was logged.

    `command`: of all engines, or by model.
    """
    by_model = dict.fromkeys(APPLICATION.models, command) if isinstance(command, str) else command
    commands = {model: EngineCommand(model, each, model) for model, each in by_model.items()}
    logged: list[str] = []

    async def run() -> None:
        other = asyncio.ensure_future(meanwhile(runner)) if meanwhile else None
        async with asyncio.timeout(TIMEOUT_S):
            await runner.run(Reports(logged.append))
        if other is not None:
            await other

    with closing(RunFolder(folder / "out", APPLICATION, SAMPLING, planned)) as run_folder:
        options = options or EngineOptions()
        runner = Runner(APPLICATION, MACHINE, commands, run_folder, SAMPLING, options)
        asyncio.run(run())
    return run_folder.record, logged


def asked(folder: Path) -> Counter[tuple[str, int]]:
    """How often each request was sent, by (node, index)."""
    return Counter(call for calls in asked_by_gpus(folder).values() for call in calls)


def asked_by_gpus(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """The requests that arrived, by the GPUs of the engine."""
    return {
        log.stem: [
            SEEDS[int(line.split()[2])]
            for line in log.read_text().splitlines()
            if line.startswith("asked")
        ]
        for log in sorted(folder.glob("*.log"))
    }
