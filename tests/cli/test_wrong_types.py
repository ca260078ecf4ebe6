"""Fields of a wrong type in a user's world file: one sentence, status 2, and no folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import WORLD
from tests.commands import Command


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("steps=24", "steps='24'", "the scenario's steps is '24'; it should be a whole number"),
        ("steps=24", "steps=2.5", "the scenario's steps is 2.5"),
        ("(world, walkers,", "(world, walkers[0],", "the agents are Walker("),
        ("(world, walkers,", "(world, walkers[0].name,", "the agents are 'w00'; they should be"),
        ("(world, walkers,", "(world, iter(walkers),", "the agents are <list_iterator object"),
        ("(world, walkers,", "(world, world.names,", "agents[0] is 'w00'; it should be a"),
        ("(world, walkers,", "(Meadow, walkers,", "the world is <class 'tests.runtime.walkers.Me"),
        ("    return Sc", "    world.step_s = '10'\n    return Sc", "the world's step_s is '10'"),
        ("    return Sc", "    world.step_s = 0\n    return Sc", "the world's step_s is 0; it"),
        ("    return Sc", "    world.step_s = -1\n    return Sc", "the world's step_s is -1; it"),
        ("    return Sc", "    world.step_s = 0 * 1e999\n    return Sc", "step_s is nan"),
        (
            "    return Sc",
            "    world.metric = 'hops'\n    return Sc",
            "the world's metric is 'hops'",
        ),
        (
            "    return Sc",
            "    world.metric = object()\n    return Sc",
            "Hops (over a graph of places, for any other distance",
        ),
        ("    return Sc", "    world.reset = lambda **_: None\n    return Sc", "returned None; it"),
        ("    return Sc", "    world.reset = lambda **_: [3]\n    return Sc", "a list with 3; it"),
    ],
)
@pytest.mark.parametrize("how", [(), ("--hours", "1"), ("--estimate",)])
def test_they_are_told(
    run: Command, before: str, after: str, sentence: str, how: tuple[str, ...]
) -> None:
    written = WORLD.format(at_every_step="pass")
    assert before in written
    Path("wrong.py").write_text(written.replace(before, after))
    status, out, err = run("wrong.py", *how)
    assert (status, out) == (2, ""), err
    assert re.fullmatch(r"metropolis: [^\n]*; (it|they) should [^\n]*\n", err), err
    assert sentence in err
    assert not Path("runs").exists() or not list(Path("runs").iterdir())
