"""Workers on Ray run worlds whose classes are defined in a script or a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

SCRIPT = """
{future}
import sys
from dataclasses import dataclass, field
from enum import Enum

from metropolis import Simulation
from metropolis.llm.backends.scripted import Scripted
from tests.runtime.walkers import Meadow, Walker, author


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Note:
    step: int
    mood: Mood


@dataclass
class Moody(Walker):
    notes: {annotation} = field(default_factory=list)

    async def proceed(self, observation, llm):
        self.notes.append(Note(self.step, Mood.GOOD))
        return await super().proceed(observation, llm) | {{"note": self.notes[-1]}}


class Yard(Meadow):
    def observe(self, view):
        return super().observe(view) | {{"note": Note(view.step, Mood.BAD)}}


if __name__ == "__main__":
    on_ray = {{"store": "embedded", "workers": "ray:2", "ray_address": sys.argv[1]}}
    for how in {{"mode": "lockstep"}}, on_ray, on_ray | {{"mode": "optimistic"}}:
        world = Yard(4, side=6)
        agents = [Moody(name) for name in world.names]
        print(Simulation(world, agents, Scripted(author), **how).run(6).history_sha256)
"""


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("future", "annotation"),
    [
        ("", "list[Note]"),
        ("", "'list[Note]'"),
        ("", "list['Note']"),
        ("from __future__ import annotations", "list[Note]"),
    ],
)
def test_dataclasses_of_a_script(tmp_path: Path, future: str, annotation: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(future=future, annotation=annotation))
    address = ray.get_runtime_context().gcs_address
    printed = subprocess.run(
        [sys.executable, "script.py", address],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.split()
    assert len(printed) == 3
    assert len(set(printed)) == 1
