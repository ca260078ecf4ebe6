"""`--verify` of run, resume and fork: its output, and the exit status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from metropolis.cli import live
from tests.cli.conftest import summary
from tests.commands import Command


def told(out: str) -> tuple[str, str]:
    """Return the note on the history, and the last line."""
    found = re.search(r"history_sha256 [0-9a-f]{64}(.*?)\n\n", out, re.DOTALL)
    assert found is not None
    return found[1].strip(), " ".join(out.split("\n\n")[-1].split())


def test_only_what_was_verified_is_claimed(run: Command) -> None:
    out = run("meadow.py", "--quiet").result
    assert told(out)[0] == "(not verified; run --verify checks it against lockstep)"
    assert "equal in every mode" not in out
    for arguments in (
        ("meadow.py", "--verify"),
        ("resume", "meadow-1", "--verify"),
        ("meadow.py", "--resume", "meadow-1", "--verify")[1:],
    ):
        status, out, err = run(*arguments, "--quiet")
        assert (status, err) == (0, "")
        assert told(out) == ("", "verified: all 24 steps are equal to lockstep's")
        assert max(map(len, out.splitlines())) <= 80


def test_a_finished_run_keeps_its_trace(run: Command) -> None:
    assert run("meadow.py", "--quiet")[0] == 0
    trace = Path("runs/meadow-1/trace.parquet").read_bytes()
    status, out, err = run("resume", "meadow-1", "--verify", "--quiet")
    assert (status, err) == (0, "")
    assert Path("runs/meadow-1/trace.parquet").read_bytes() == trace
    assert re.search(r"oracle_values .* 100%", out), "the table has all modes"


def test_ctrl_c_before_a_verification_is_taken(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("meadow.py", "--quiet")[0] == 0
    original = live._run

    def interrupted(*arguments: Any, **options: Any) -> bool:
        assert not original(*arguments, **options)
        return True

    monkeypatch.setattr(live, "_run", interrupted)
    status, out, err = run("resume", "meadow-1", "--verify", "--quiet")
    assert (status, err) == (
        130,
        "metropolis: interrupted; the run is complete, and not verified\n",
    )
    assert "(not verified" in out


def test_the_summary_holds_what_was_verified(run: Command) -> None:
    found = summary(run, "meadow.py", "--quiet", "--verify", "--verify-steps", "6")
    first, end = found["verified"]["parts"][0]
    assert (first, end) == (0, 6)
    assert found["verified"]["deviation"] is None
    assert summary(run, "meadow.py", "--quiet")["verified"] is None


def test_a_world_of_chance_is_told_with_its_status(run: Command) -> None:
    status, out, _ = run("dice.py", "--quiet", "--verify", "--out", "here")
    assert status == 4
    assert re.match(
        r"not verified: lockstep differs at step 5, 'w0\d': the entity 'w0\d'\['state'\]\['last'\] "
        r"is '0\.\d+' instead of '0\.\d+'",
        told(out)[1],
    )
    status, out, _ = run("resume", "here", "--quiet", "--verify", "--json")
    assert status == 4
    assert json.loads(out)["verified"]["deviation"]["step"] == 5


def test_a_branch_is_verified(run: Command) -> None:
    summary(run, "meadow.py", "--quiet")
    out = run("fork", "meadow-1", "--at", "9", "--seed", "4", "--quiet", "--verify").result
    assert told(out)[1].startswith("verified: steps 9 to 23, all of the branch's own")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--verify-steps", "5"), "give both, or neither"),
        (
            ("--verify", "--store", "embedded", "--workers", "ray:1"),
            "workers on Ray write no answers",
        ),
    ],
)
def test_what_cannot_be_verified_is_refused_before_anything_runs(
    run: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run("meadow.py", *arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert not Path("runs").exists()
