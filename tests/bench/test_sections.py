"""The loop over the sections of a benchmark, with sections that do nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from metropolis.bench._sections import Rows, run_sections, section_options, seeded_runs


@dataclass
class Echo:
    """Its only row is what it was measured with."""

    name: str
    KIND = "simulated"

    def runs(self, quick: bool) -> int:
        return 1 if quick else 2

    def measure(self, quick: bool, seed: int, advance: Callable[[int], None]) -> Rows:
        advance(self.runs(quick))
        return [{"name": self.name, "quick": quick, "seed": seed}]

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        console.print(f"Simulated: {self.name} {rows}")


SECTIONS = {name: Echo(name) for name in ("one", "two", "three")}


@click.command()
@section_options(SECTIONS, "all of them")
def command(only: tuple[str, ...], quick: bool, seed: int, as_json: bool) -> None:
    def show_more(found: Mapping[str, Rows], console: Console) -> None:
        console.print(f"more: {[*found]}")

    run_sections(seeded_runs(SECTIONS, quick, seed), only, quick, seed, as_json, show_more)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("only", "names"),
    [((), ["one", "two", "three"]), (("three", "one", "three"), ["one", "three"])],
)
def test_chosen_sections_run_once_in_their_order(only: tuple[str, ...], names: list[str]) -> None:
    options = [f"--only={name}" for name in only]
    content = json.loads(run(*options, "--json", "--quick", "--seed", "7").stdout)
    assert list(content["sections"]) == names
    assert content == {
        "seed": 7,
        "quick": True,
        "sections": {
            name: {"kind": "simulated", "rows": [{"name": name, "quick": True, "seed": 7}]}
            for name in names
        },
    }
    lines = run(*options).stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == names
    assert lines[-1] == f"more: {names}"


def test_options_are_checked_and_explained() -> None:
    for wrong in (("--only", "four"), ("--seed", "-1")):
        assert run(*wrong).exit_code == 2
    assert "[default: all of them]" in run("--help").stdout
