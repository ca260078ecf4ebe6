"""Agents that exit the interpreter, loop or wait forever, with real processes and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS
from tests.commands import Command

ROOT = Path(__file__).parent.parent.parent
WORLD = """
import asyncio, os, sys, time
from pathlib import Path
from metropolis import Scenario
from tests.runtime.walkers import Meadow, Walker, PlainWalker, author

class Unruly({kind}):
    {define} proceed(self, observation, llm):
        if self.step == 6 and self.name == "w01":
            if os.environ.get("UNRULY"):
                Path("there").touch()
                {act}
        return {wait} super().proceed(observation, llm)

def make(*, agents=None, seed=0):
    world = Meadow(agents or 4, side=9, joint=-1)
    return Scenario(world, [Unruly(name) for name in world.names], author, steps=20)
"""
LOOP = "while True: pass"
STUBBORN = """
                while True:
                    try:
                        await asyncio.sleep(9)
                    except BaseException:
                        pass
"""
ENDS = ("sys.exit(0)", "raise KeyboardInterrupt", "raise GeneratorExit", "1 / 0")
EVER = {
    "loop": ("async", LOOP),
    "thread": ("plain", LOOP),
    "sleep": ("plain", "time.sleep(1e6)"),
    "await": ("async", "await asyncio.Event().wait()"),
    "stubborn": ("async", STUBBORN),
}


def world(form: str, act: str) -> int:
    """Write world.py; return the line of `act`."""
    how = {"kind": "Walker", "define": "async def", "wait": "await"}
    if form == "plain":
        how = {"kind": "PlainWalker", "define": "def", "wait": ""}
    text = WORLD.format(act=act, **how)
    Path("world.py").write_text(text)
    return text.splitlines().index("                " + act.strip().splitlines()[0]) + 1


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*METROPOLIS, "run", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "UNRULY": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def digest(out: str) -> str:
    found = re.search(r"history_sha256 (\w+)", out)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("form", "act", "store"),
    [
        *((form, act, "memory") for form in ("async", "plain") for act in ENDS),
        ("async", "raise asyncio.CancelledError", "memory"),
        ("async", "asyncio.get_running_loop().call_soon(sys.exit, 0)", "memory"),
        ("async", "asyncio.get_running_loop().stop(); await asyncio.sleep(9)", "memory"),
        ("async", "await asyncio.gather(asyncio.to_thread(sys.exit, 0))", "memory"),
        ("plain", "raise StopIteration", "memory"),
        ("plain", "sys.exit(0)", "embedded"),
    ],
)
def test_what_would_end_the_interpreter_is_an_error_of_its_agent(
    run: Command, monkeypatch: pytest.MonkeyPatch, form: str, act: str, store: str
) -> None:
    line = world(form, act)
    monkeypatch.setenv("UNRULY", "1")
    status, out, err = run("world.py", "--quiet", "--store", store)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "asyncio/" not in err
    if "call_soon" in act:
        assert re.search(r"under way: .*step 6, agent 'w01', in Unruly.proceed", err)
    else:
        assert "step 6, agent 'w01', in Unruly.proceed: " in err
    if not {"CancelledError", "get_running_loop", "gather"} & set(re.findall(r"\w+", act)):
        assert f"/world.py:{line}: " in err
    assert re.search(r"the run is at step \d of 20; continue with: metropolis resume runs/w", err)
    monkeypatch.delenv("UNRULY")
    status, out, err = run("resume", "--quiet")
    assert (status, err) == (0, "")


def test_a_task_of_an_agents_own_that_exits_is_its_error(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "async def leave(): sys.exit(0)"
    world("async", f"{own}\n                asyncio.create_task(leave())")
    monkeypatch.setenv("UNRULY", "1")
    err = run("world.py", "--quiet").refusal
    assert re.search(r"step 6, agent 'w01', in Unruly.proceed: \S+/world.py:12: SystemExit: 0", err)


def test_the_reader_of_a_story_may_end(run: Command) -> None:
    text = WORLD.format(act="pass", kind="Walker", define="async def", wait="await")
    story = "lambda record: [f'step {record.step} is ' + 'long ' * 200]"
    Path("world.py").write_text(text.replace("author, steps=20", f"author, {story}, steps=20000"))
    with start("world.py", "--out", "here") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 2
    assert re.fullmatch(
        r"metropolis: the reader of the story has ended; the run is at step \d+ of 20000; continue "
        r"with: metropolis resume here\n",
        err,
    ), err
    assert Path("here/trace.parquet").exists()


@pytest.mark.parametrize("where", ["make", "reset", "observe", "resolve"])
def test_so_it_is_in_a_world(run: Command, where: str) -> None:
    text = WORLD.format(act="pass", kind="Walker", define="async def", wait="await")
    method = f"class Bad(Meadow):\n    def {where}(self, *_, **__): sys.exit(0)\n\ndef make("
    text = text.replace("def make(", method).replace("= Meadow(", "= Bad(")
    if where == "make":
        text = text.replace("    world =", "    sys.exit(0)\n    world =")
    Path("world.py").write_text(text)
    status, out, err = run("world.py", "--quiet")
    assert (status, out) == (2, "")
    assert re.search(r"/world.py:\d+: SystemExit: 0; fix it there", err), err
    if where in ("observe", "resolve"):
        assert re.search(rf"step 0, agent 'w0\d'.*, in Bad.{where}: ", err)


def test_the_traceback_is_printed_with_debug(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    line = world("async", "1 / 0")
    monkeypatch.setenv("UNRULY", "1")
    err = run("world.py", "--quiet", "--debug").refusal
    assert "Traceback (most recent call last):" in err
    assert f'world.py", line {line}, in proceed' in err
    assert re.search(
        rf"\nmetropolis: step 6, agent 'w01', in Unruly.proceed: \S*world.py:{line}: "
        "ZeroDivisionError: division by zero; fix it there; the run is at step",
        err,
    )
    assert "Traceback" not in run("world.py", "--quiet")[2]


@pytest.mark.parametrize("ever", EVER)
def test_who_goes_on_for_ever_is_named_and_ctrl_c_ends_it(run: Command, ever: str) -> None:
    world(*EVER[ever])
    whole = digest(run("world.py", "--quiet", "--out", "whole")[1])
    process = start("world.py", "--quiet", "--out", "here", "--stall", "0.5")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.fullmatch(
        r"metropolis: step 6, agent 'w01', in Unruly.proceed \(at \S+/world.py:\d+\) has run for "
        r"\d s without a call\n",
        line,
    ), line
    assert "agent 'w01'" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    if ever in ("thread", "sleep", "await"):  # a plain agent's thread is not stopped
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "interrupted; the run is at step" in err
        assert "history_sha256" in out
    else:
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    status, out, err = run("resume", "here", "--quiet")
    assert (status, err) == (0, "")
    assert digest(out) == whole


def test_a_run_that_does_not_end_says_what_it_waits_for(run: Command) -> None:
    world("async", LOOP)
    process = start("world.py", "--quiet", "--out", "here", "--stall", "0")
    while not Path("there").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.fullmatch(
        r"metropolis: the run ends after step 6, agent 'w01', in Unruly.proceed \(at \S+\); Ctrl-C "
        r"again ends it at once\n",
        line,
    ), line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
