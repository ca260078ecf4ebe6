"""Fixtures that run `metropolis run`, `resume` and other commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command, Ended

OTHERS = ("resume", "fork", "whisper", "diff", "replay", "view", "show", "ask", "world")
WORLD = """
import signal
from metropolis import Scenario
from tests.runtime.walkers import Meadow, Walker, author

def make(*, agents=None, seed=0):
    world = Meadow(agents or 6, side=9, joint=2)
    walkers = [Walker(name) for name in world.names]
    return Scenario(world, walkers, author, story, steps=24)

def story(record):
    {at_every_step}
    return [f"{{event.source}} shouts {{event['word']}}" for event in record.events]
"""
DICE = """
import random
from tests.runtime.walkers import Meadow

class Dice(Meadow):
    async def resolve(self, cluster):
        await super().resolve(cluster)
        for member in cluster:
            if cluster.step == 5:
                member.write(last=str(random.random()))
"""
OWN_POLICY = """
from metropolis.policy.base import Policy

class Mine(Policy):
    def __init__(self, base: int = 3):
        self.base = base

    def rank(self, request):
        return self.base
"""


@pytest.fixture
def run(metropolis: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `metropolis run …` in its own folder with worlds: meadow.py, interrupted.py, dice.py.

    If the first argument is one of OTHERS, run that command instead.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if "ray" in sys.modules:  # by other tests of this process; a command has a process of its own
        monkeypatch.setattr("ray.is_initialized", lambda: False)
    Path("meadow.py").write_text(WORLD.format(at_every_step="pass"))
    interrupting = "if record.step == 7: signal.raise_signal(signal.SIGINT)"
    Path("interrupted.py").write_text(WORLD.format(at_every_step=interrupting))

    dice = WORLD.format(at_every_step="pass").replace("Meadow(", "Dice(")
    dice = dice.replace("Meadow, Walker", "Walker").replace("\ndef make", DICE + "\ndef make")
    Path("dice.py").write_text(dice)
    boundless = "    del world.perception_radius\n    walkers ="
    Path("formless.py").write_text(
        WORLD.format(at_every_step="pass").replace("    walkers =", boundless)
    )
    Path("own.py").write_text(OWN_POLICY)

    def running(*words: object) -> Ended:
        return metropolis(*(() if words[:1] and words[0] in OTHERS else ("run",)), *words)

    return running


def summary(run: Command, *arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(*arguments, "--json").result)
    return content


@pytest.fixture
def uninterrupted(run: Command) -> dict[str, Any]:
    return summary(run, "meadow.py", "--quiet", "--out", "uninterrupted")
