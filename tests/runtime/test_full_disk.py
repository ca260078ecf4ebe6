"""A full disk ends a run at once, with the file's name; the run can be resumed. Atomic writes."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from metropolis import durable, line_file
from metropolis.durable import UnwritableError, write_atomically
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.timeline import writer
from metropolis.types import MetropolisError
from tests.runtime.walkers import Meadow, Walker, author, choose

STEPS = 12


@dataclass
class Stubborn(Walker):
    """Continues whatever happens to its calls."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        try:
            said = await llm.chat(f"{observation}", max_tokens=40)
            self.memory.append(said.text)
        except MetropolisError:
            self.memory.append("silence")
        return choose(self, observation) | {"talk": False}


def simulation(out: Path | None, kind: type[Walker] = Walker, **how: Any) -> Simulation:
    world = Meadow(4, side=6, joint=1)
    agents = [kind(name) for name in world.names]
    return Simulation(world, agents, Client(Scripted(author), retries=0), out=out, **how)


@contextmanager
def file_size_at_most(size_bytes: int) -> Iterator[None]:
    """Make writes beyond this size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_after(writes: int, name: str) -> Iterator[None]:
    """Let the disk accept `writes` writes to the file, and half of the next one."""
    whole, left = durable.write_all, [writes]

    def write(file: FileIO, content: bytes | bytearray) -> None:
        if name in str(file.name):
            left[0] -= 1
            if left[0] < 0:
                file.write(content[: len(content) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(file, content)

    with pytest.MonkeyPatch.context() as patched:
        for module in (durable, line_file, writer):
            patched.setattr(module, "write_all", write)
        yield


def continues(out: Path, kind: type[Walker], whole: RunResult) -> None:
    result = simulation(out, kind, resume=True).run(STEPS)
    assert (result.history_sha256, result.calls) == (whole.history_sha256, whole.calls)
    assert (out / "trace.parquet").exists()


@pytest.mark.parametrize("kind", [Walker, Stubborn])
def test_a_full_disk_ends_a_run_that_can_be_resumed(tmp_path: Path, kind: type[Walker]) -> None:
    whole = simulation(None, kind).run(STEPS)
    for size_bytes in (1500, 3000, 5500):
        out = tmp_path / f"{size_bytes}"
        run = simulation(out, kind, timeline=False)
        said = r"/(journal|history)\.jsonl: cannot be written: File too large$"
        with file_size_at_most(size_bytes), pytest.raises(UnwritableError, match=said):
            run.run(STEPS)
        continues(out, kind, whole)


@pytest.mark.parametrize("kind", [Walker, Stubborn])
@pytest.mark.parametrize(
    "name", ["history.jsonl", "calls.jsonl", "journal.jsonl", "checkpoints", "executions-0.arrows"]
)
def test_the_file_is_named(tmp_path: Path, kind: type[Walker], name: str) -> None:
    whole = simulation(None, kind).run(STEPS)
    for writes in (0, 1, 2):
        out = tmp_path / f"{writes}"
        run = simulation(out, kind, checkpoint_wall_s=0)
        said = rf"/{name}(/\d+\.json\.gz)?: cannot be written: No space left on device$"
        with full_after(writes, name), pytest.raises(UnwritableError, match=said):
            run.run(STEPS)
        continues(out, kind, whole)


@pytest.mark.parametrize("how", [{}, {"mode": "optimistic", "waste_budget": 1.0}])
def test_an_agent_that_goes_on_without_its_answer_commits_nothing(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    whole = simulation(None, Stubborn).run(STEPS)
    for writes in (1, 5):
        out = tmp_path / f"{writes}"
        run = simulation(out, Stubborn, store="embedded", **how)
        with full_after(writes, "journal.jsonl"), pytest.raises(UnwritableError):
            run.run(STEPS)
        continues(out, Stubborn, whole)


def test_a_link_in_place_of_the_partial_file_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / ".run.json.partial").symlink_to(other)
    write_atomically(tmp_path / "run.json", b"{}")
    assert other.read_text() == "precious"
    assert (tmp_path / "run.json").read_bytes() == b"{}"
    assert not (tmp_path / "run.json").is_symlink()
