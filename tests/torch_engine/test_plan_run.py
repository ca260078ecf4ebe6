"""`metropolis plan run` with two tiny models on two torch engines, one of which is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from metropolis.llm.journal import read_journal
from metropolis.plan.application_file import read_application
from metropolis.plan.running.engine import Sampling
from metropolis.plan.running.engine_command import engine_commands
from metropolis.plan.running.folder import RunFolder, RunRecord
from metropolis.plan.running.model_copy import EngineOptions
from metropolis.plan.running.runner import Reports, Runner
from metropolis.plan.search.methods import search
from metropolis.plan.timeline import Timeline
from metropolis.plan.workload import columns_of, drawn
from tests.torch_engine import COMMAND
from tests.torch_engine.served_models import save_models

pytestmark = pytest.mark.campaign
"""Every start of an engine imports torch: several seconds."""
APPLICATION = """
name = "two_models"
machine.gpus = 2

[sources.questions]
file = "questions.jsonl"
[sources.documents]
file = "documents.jsonl"

[nodes] # both models answer the questions; one summarises documents, the other judges
base = { model = "base", inputs = "questions", max_tokens = 12 }
chat = { model = "chat", inputs = "questions", max_tokens = 12 }
summary = { model = "base", inputs = "documents", chain = true, max_tokens = 40 }
judge = { model = "chat", inputs = "summary", max_tokens = 12 }

[lengths.base]
values = [12, 40]
[lengths.chat]
values = [12]

[models.base]
parameters = 0.001
layers = 5
hidden = 32
heads = 4
kv_heads = 2
context_tokens = 4096
[models.chat]
parameters = 0.001
layers = 5
hidden = 32
heads = 4
kv_heads = 2
context_tokens = 4096

[engines.base]
path = "base"
[engines.chat]
path = "chat"
"""
ENGINE = f"{shlex.join(COMMAND)} serve torch --model {{model}}={{path}} --port {{port}} --threads 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_models(tmp_path, "base", "chat")
    questions = [{"key": f"q{n}", "text": f"What is {n} + {n}?"} for n in range(10)]
    documents = [{"key": f"d{n}", "parts": [f"Part {p} of {n}." for p in range(4)]} for n in (1, 2)]
    for name, items in (("questions", questions), ("documents", documents)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(i) + "\n" for i in items))
    (tmp_path / "two.toml").write_text(APPLICATION)
    return tmp_path


def test_a_killed_torch_engine_loses_nothing(folder: Path) -> None:
    loaded = read_application(folder / "two.toml")
    application, machine = loaded.application, loaded.machine
    workload = drawn(
        columns_of(application), loaded.lengths, machine.shapes, np.random.default_rng(0)
    )
    planned = search(Timeline(machine, workload))
    commands = engine_commands(application.models, loaded.engines, folder, ENGINE)
    killed: list[str] = []
    logged: list[str] = []

    async def kill(runner: Runner) -> None:
        """The engine of a chain that is under way."""
        while not (node := runner.running.get("summary")) or not any(
            index % 4 for copy in node.copies for index in copy.in_flight
        ):
            await asyncio.sleep(0.001)
        copy = next(copy for copy in node.copies if copy.in_flight)
        assert copy.engine is not None
        os.kill(copy.engine.pid, signal.SIGKILL)
        killed.append(copy.name)

    async def run(run_folder: RunFolder) -> RunRecord:
        runner = Runner(
            application, machine, commands, run_folder, Sampling(), EngineOptions(at_once=2)
        )
        await asyncio.gather(runner.run(Reports(logged.append)), kill(runner))
        return run_folder.record

    with closing(RunFolder(folder / "out", application, Sampling(), planned)) as run_folder:
        record = asyncio.run(run(run_folder))
    assert killed
    assert [line for line in logged if line.startswith(killed[0])]
    assert record.is_complete
    counts = {"base": 10, "chat": 10, "summary": 8, "judge": 2}
    keys = [(key.function, key.occurrence) for key, _ in read_journal(folder / "out/journal.jsonl")]
    assert sorted(keys) == sorted((name, n) for name, count in counts.items() for n in range(count))
    lines = (folder / "out/answers.jsonl").read_text().splitlines()
    answers = {(each["node"], each["index"]): each for each in map(json.loads, lines)}
    assert all(each["prompt_tokens"] > 10 for each in answers.values())
    assert answers["judge", 0]["prompt_tokens"] > len(answers["summary", 3]["text"].encode())
