"""`metropolis serve torch` as a command."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from metropolis.reuse.plan import write_plan
from tests.commands import Command
from tests.gateway.engines import gateway_before
from tests.gateway.real_engine import RealEngine
from tests.torch_engine import COMMAND
from tests.torch_engine.served_models import save_models
from tests.torch_engine.test_engine import plan
from tests.torch_engine.test_server import chat


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `base` and `chat`, `deep` of another shape, and plans."""
    folder = tmp_path_factory.mktemp("models")
    save_models(folder, "base", "chat")
    save_models(folder, "deep", layers=6)
    write_plan(plan("base", "chat"), folder / "plan.json")
    write_plan(plan("base", "chat", layers=12), folder / "of12.json")
    (folder / "broken.json").write_text("{")
    (folder / "empty").mkdir()
    (folder / "torn").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / "torn" / name).write_bytes((folder / "base" / name).read_bytes())
    (folder / "torn" / "model.safetensors").write_bytes(b"torn")
    return folder


def serve(folder: Path, *more: str) -> list[str]:
    return ["serve", "torch", *(part.format(folder) for part in more)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--model'"),
        (("--model={}/gone",), "is not a folder; write NAME=FOLDER or FOLDER"),
        (("--model={}/empty",), "has no config.json; name a folder in the format of Hugging Face"),
        (("--model={}/torn",), "cannot be loaded"),
        (("--model={}/base", "--model=base={}/chat"), "two models have the same name"),
        (("--model={}/base", "--model={}/deep"), "should be variants of one model"),
        (("--model={}/base", "--reuse=gone"), "gone"),
        (("--model={}/base", "--reuse=droidspeak:plans={}/broken.json"), "is not a reuse plan"),
        (
            ("--model={}/base", "--model={}/chat", "--reuse=droidspeak:plans={}/of12.json"),
            "is for models of 12 layers; 'base' has 5",
        ),
        (("--model={}/base", "--device=cuda"), "cannot be moved to cuda"),
        (("--model={}/base", "--memory=lots"), "is not a size"),
        (("--model={}/base", "--memory=100"), "memory"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_sentence(
    metropolis: Command, folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    said = metropolis(*serve(folder, *arguments))
    assert message in said.refusal
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_a_killed_engine_is_one_sentence_to_clients(folder: Path) -> None:
    """The command with a plan, behind a gateway that has it as well."""
    command = serve(
        folder, "--model={}/base", "--model={}/chat", "--reuse=droidspeak:plans={}/plan.json",
        "--port=0", "--threads=1",
    )  # fmt: skip
    with subprocess.Popen([*COMMAND, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "metropolis serves base, chat at http://127.0.0.1:" in line
            url = line.split(" at ")[1].split(";")[0]
            asyncio.run(_ask_and_kill(url, lambda: os.kill(process.pid, signal.SIGKILL)))
        finally:
            process.kill()


async def _ask_and_kill(engine_url: str, kill: Callable[[], Any]) -> None:
    async with (
        gateway_before(RealEngine(engine_url)) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for model in ("base", "chat"):
            answer = await client.chat.completions.with_raw_response.create(**chat(model, "Who?"))
        assert int(answer.headers["X-Metropolis-Reused-Tokens"]) > 1000
        endless = chat("base", "Who?", max_tokens=2500, extra_body={"ignore_eos": True})
        stream = await client.chat.completions.create(**endless, stream=True)
        await anext(stream)
        kill()
        with pytest.raises(openai.APIError, match="was lost") as lost:
            async for _ in stream:
                pass
        assert f"the engine at {engine_url} was lost" in lost.value.message
