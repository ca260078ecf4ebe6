"""`metropolis view` refuses what it cannot show, and writes pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from metropolis.bench import METROPOLIS
from metropolis.viewer.data.opening import KNOWN_ANSWERS, open_run
from tests.commands import Command


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere: holds no run; give the folder of one"),
        (("meadow.py",), "meadow.py: holds no run"),
        (("uninterrupted", "--beside", "nowhere"), "there is no run or mode 'nowhere'"),
        (("uninterrupted", "--beside", "lockstp"), "did you mean 'lockstep'"),
        (("uninterrupted", "--beside", "out_of_order"), "name another mode to race against it"),
        (("uninterrupted", "--beside", "versioned"), "name another mode to race against it"),
        (("uninterrupted", "--beside", "critical_path"), "there is no run or mode 'critical_path'"),
        (("uninterrupted", "--port", "70000"), "70000 is not in the range"),
        (("uninterrupted", "--host", "256.0.0.1"), "cannot listen at 256.0.0.1:0"),
        (("uninterrupted", "--out", "."), "is a directory"),
        (("uninterrupted", "--out", "no/page.html"), "no/page.html: cannot be written"),
        (("uninterrupted", "--out", "x.html", "--host", "::1"), "--host is for a page that is"),
        (
            ("uninterrupted", "--out", "x.html", "--port", "0"),
            "--port is for a page that is served",
        ),
    ],
)
def test_refused(
    run: Command, uninterrupted: object, arguments: tuple[str, ...], sentence: str
) -> None:
    errors = run("view", *arguments, "--no-open").refusal
    assert sentence in errors


def test_lanes_of_a_replay_are_named(run: Command, uninterrupted: object) -> None:
    run("replay", "uninterrupted", "--modes", "lockstep,oracle", "--record", "replayed")
    status, _, errors = run("view", "replayed", "--beside", "lane", "--out", "page.html")
    assert (status, "there is no lane 'lane'; there are lockstep, oracle" in errors) == (2, True)


def test_a_page_that_is_written_is_not_opened(run: Command, uninterrupted: object) -> None:
    errors = run("view", "uninterrupted", "--out", "page.html", "--open").refusal
    assert "--open is for a page that is served" in errors
    assert not Path("page.html").exists()


def test_a_page_is_written(run: Command, uninterrupted: object) -> None:
    arguments = ("--beside", "lockstep", "--out", "page.html")
    assert run("view", "uninterrupted", *arguments) == (0, "wrote page.html\n", "")
    assert Path("page.html").read_text().count('/meta/0">') == 2


def test_a_start_with_nothing_to_do_is_no_caveat(run: Command) -> None:
    run("meadow.py", "--out", "here", "--quiet", "--json")
    files = sorted(Path("here/timeline").iterdir())
    status, out, _ = run("resume", "here", "--verify", "--quiet", "--json")
    assert (status, json.loads(out)["makespan_note"]) == (0, None)
    assert sorted(Path("here/timeline").iterdir()) == files
    assert open_run(Path("here")).meta()["note"] is None


@pytest.mark.parametrize(
    ("options", "resumed", "summarised", "viewed"),
    [
        (("--llm", "replay:uninterrupted"), False, True, True),
        (("--llm", "replay:uninterrupted"), True, True, True),
        (("--llm", "replay:uninterrupted", "--mode", "optimistic"), False, True, True),
        (("--no-timeline",), False, False, False),
        (("--no-timeline",), True, True, False),  # the viewer shows no times
    ],
)
def test_the_summary_and_the_viewer_say_what_times_lack(
    run: Command,
    uninterrupted: object,
    options: tuple[str, ...],
    resumed: bool,
    summarised: bool,
    viewed: bool,
) -> None:
    said = run("meadow.py", *options, "--out", "here", "--quiet", "--json")
    if resumed:
        said = run("resume", "here", "--quiet", "--json")
    note = "which may lack the time of known answers" if summarised else None
    assert (said[0], json.loads(said[1])["makespan_note"]) == (0, note)
    assert (KNOWN_ANSWERS in (open_run(Path("here")).meta()["note"] or "")) == viewed


def test_ctrl_c_ends_the_server(run: Command, uninterrupted: object) -> None:
    command = [*METROPOLIS, "view", "uninterrupted", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert re.match(r"http://127\.0\.0\.1:\d+/#token=\S{20,}\n", child.stdout.readline())
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(10) == 0


def test_a_run_with_a_page(run: Command) -> None:
    status, _, _ = run("meadow.py", "--view", "--quiet", "--out", "shown", "--json")
    assert status == 0
    assert Path("shown/view.json").exists()
    status, _, _ = run("resume", "shown", "--view", "--quiet", "--json")
    assert status == 0
