"""`metropolis bench recovery`: its kills, its count of double purchases, and a short campaign."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from math import inf
from pathlib import Path
from tempfile import mkdtemp

import pytest
from click.testing import CliRunner

from metropolis.bench import recovery
from metropolis.bench.recovery import world
from metropolis.bench.recovery.nodes import Location, Nodes, ray_environment
from metropolis.bench.recovery.plan import IN_PROCESS, VICTIMS, draw_kills
from metropolis.bench.recovery.purchases import LAG_S, ExecutedKill, Purchases, purchases_of
from metropolis.bench.recovery.victim import Outcome
from metropolis.runtime.checks.check_world import check_world
from metropolis.types import MetropolisError


def test_kills_are_a_function_of_the_seed() -> None:
    kills = draw_kills(200, 3)
    assert kills == draw_kills(200, 3) != draw_kills(200, 4)
    assert Counter(kill.victim for kill in kills) == dict.fromkeys(VICTIMS, 40)


def test_its_world_keeps_causality() -> None:
    check_world(world.make)


@pytest.mark.parametrize(
    ("began_s", "ended_s", "beyond"),
    [
        (10.5, 10.5, 0),  # sent, not answered
        (11.0 + LAG_S / 2, inf, 0),  # answered, perhaps not stored
        (9.0, 10.0 - LAG_S / 2, 0),  # sent, not received
        (12.0, 13.0, 1),  # stored long before
        (5.0, 6.0, 1),  # kill over before the call
    ],
)
def test_only_calls_in_flight_at_a_kill_may_be_bought_twice(
    tmp_path: Path, began_s: float, ended_s: float, beyond: int
) -> None:
    log = tmp_path / "log"
    lines = ["asked 10 7", "asked 10.2 8", "answered 10.3 8", "answered 11 7"]
    lines += ["asked 3 9", "cancelled 3.5 9"]
    # The first answer of 5 may not have been read by a request that was cancelled.
    lines += ["asked 3 5", "answered 3.1 5", "dropped 3.2 5", "asked 4 5", "answered 4.1 5"]
    # The connection of the first answer of 6 was closed after an equal request had followed.
    lines += ["asked 3 6", "answered 3.1 6", "asked 3.2 6", "dropped 3.2 6", "answered 4.1 6"]
    log.write_text("\n".join([*lines, "asked 20 7", "answered 21 7"]))
    found = purchases_of(log, [ExecutedKill("worker", began_s, [], ended_s)])
    in_flight = int(began_s == 10.5)
    assert found == Purchases(bought=7, unique=4, in_flight=in_flight, beyond=beyond, cancelled=1)


def test_a_node_that_does_not_start_reports_its_last_line(tmp_path: Path) -> None:
    failing = Location(("/bin/sh", "-c", "echo one; echo two; exit 1"))
    with pytest.raises(MetropolisError, match=r"did not start: two \(full log: .*head\.log\)$"):
        Nodes(tmp_path, ray_environment(), failing)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("mode", "victims"), [("out_of_order", VICTIMS), ("optimistic", IN_PROCESS)]
)
def test_runs_with_kills_equal_the_uninterrupted_run(
    seed: int, mode: str, victims: tuple[str, ...]
) -> None:
    kills = 3 * len(victims)
    arguments = ["--kills", f"{kills}", "--seed", f"{seed}", "--mode", mode, "--json"]
    found = CliRunner().invoke(recovery.command, arguments, standalone_mode=False)
    assert found.return_value == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["survived"] == summary["kills"] == kills
    assert {name: of["kills"] for name, of in summary["victims"].items()} == {
        name: 3 * (name in victims) for name in VICTIMS
    }


@pytest.mark.parametrize("flaws", [[], ["history_sha256 is a, but b without kills"]])
def test_the_command_reports_every_flaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaws: list[str]
) -> None:
    bought = Purchases(bought=12, unique=10, in_flight=4, beyond=0, cancelled=0)
    runs = [
        Outcome(True, ["worker", "store"], 1, 0, 2.0, bought, []),
        Outcome(False, ["node"], 2, 0, 3.0, bought, flaws),
    ]
    monkeypatch.setattr(recovery, "campaign", lambda *_: runs)
    monkeypatch.setattr(recovery.tempfile, "mkdtemp", lambda **where: mkdtemp(dir=tmp_path))
    call = partial(CliRunner().invoke, recovery.command, standalone_mode=False)
    printed, found = call(["--seed", "5"]), call(["--seed", "5", "--json"])
    assert printed.return_value == found.return_value == bool(flaws)
    summary = json.loads(found.stdout)
    assert (summary["kills"], summary["survived"]) == (3, 2 if flaws else 3)
    assert summary["victims"]["node"] == {"kills": 1, "survived": 0 if flaws else 1}
    assert (summary["bought"], summary["unique"], summary["in_flight"]) == (24, 20, 8)
    assert "24 answers bought, 4 of them again" in printed.stdout
    for flaw in flaws:
        assert f"run 1 of seed 5, after node: {flaw}" in printed.stdout
