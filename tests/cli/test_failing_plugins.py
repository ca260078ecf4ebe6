"""A user's policy or dispatcher that raises in a run or a replay: the error names the method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metropolis.bench.stub_server import stub_server
from tests.commands import Command

PLUGINS = """
from metropolis.dispatch.fixed import LeastLoaded
from metropolis.policy.fixed import Fcfs

class Mine({base}):
    def {method}(self, *_, **__):
        raise KeyError('x')
"""
POLICY = {"rank": 2, "arrived": 2, "passed": 2, "started": 0, "completed": 0}
DISPATCHER = {"place": 2, "completed": 0}
"""The exit status of a run: it continues unless a call cannot be placed."""
METHODS = [
    *(("policy", method, status) for method, status in POLICY.items()),
    *(("dispatcher", method, status) for method, status in DISPATCHER.items()),
]


def write(kind: str, method: str) -> tuple[str, str]:
    """Write a plug-in whose `method` raises; return the option that names it."""
    base = {"policy": "Fcfs", "dispatcher": "LeastLoaded"}[kind]
    content = PLUGINS.format(base=base, method=method)
    Path("mine.py").write_text(content)
    return f"--{kind}", "mine.py:Mine"


def sentence(kind: str, method: str) -> str:
    line = PLUGINS.count("\n", 0, PLUGINS.index("raise")) + 1
    return rf"the {kind} Mine failed in {method}: \S*mine.py:{line}: KeyError: 'x'; fix it there"


@pytest.mark.parametrize(("kind", "method", "ends_with"), METHODS)
def test_in_a_run(run: Command, kind: str, method: str, ends_with: int) -> None:
    option = write(kind, method)
    with stub_server(0.0, 0) as url:
        how = ("--engine", url, *option, "--steps", "4", "--quiet")
        status, _, err = run("meadow.py", *how)
    assert status == ends_with, err
    assert len(re.findall(sentence(kind, method), err)) == 1 + (status == 2), err
    assert "Traceback" not in err
    assert not re.search(r"agent '|w0\d|Walker", err), err


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind, method, _ in METHODS),
        *((kind, "program_ended") for kind in ("policy", "dispatcher")),
    ],
)
@pytest.mark.usefixtures("uninterrupted")
def test_in_a_replay(run: Command, kind: str, method: str) -> None:
    option = write(kind, method)
    modes = ("--modes", "out_of_order")
    status, out, err = run("replay", "uninterrupted", *modes, *option)
    assert (status, out) == (2, ""), err
    assert re.fullmatch(f"metropolis: {sentence(kind, method)}\n", err), err


@pytest.mark.usefixtures("uninterrupted")
def test_a_dispatcher_that_does_not_know_its_fleet(run: Command) -> None:
    option = write("dispatcher", "place")
    content = Path("mine.py").read_text().replace("def place(", "def __init__(")
    Path("mine.py").write_text(content.replace("raise KeyError('x')", "pass"))
    status, _, err = run("replay", "uninterrupted", "--modes", "out_of_order", *option)
    assert status == 2, err
    assert re.fullmatch(
        r"metropolis: \S*mine.py:Mine: the dispatcher has no fleet; [^\n]*\n", err
    ), err
