"""The run of a world in a process in which texts have other hashes.

What depends on `hash()` of a text, or on the order of a set of texts, differs between processes: a
resumed run, a worker on Ray and a fork would have another history.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metropolis.rules.rules import lockstep
from metropolis.runtime.checks.randomized_runs import Trial, checked_start
from metropolis.runtime.folder.history import line_of, record_of
from metropolis.runtime.live.stored import Start
from metropolis.types import MetropolisError, Step
from metropolis.world.record import StepRecord
from metropolis.world.scenario import make_scenario
from metropolis.world.user_errors import explained

PLAIN = str, int, float, type(None)
"""Types of options that the other process gets as they are."""
BEGIN = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {__name__} import main
main(*sys.argv[2:])
"""
"""The other process finds the modules that this one finds."""


def records_with_other_hashes(
    name: str,
    agents: int | None,
    seed: int,
    steps: Step,
    options: Mapping[str, str | int | float | None] | None,
) -> list[StepRecord]:
    """The beginning and the history of the world `name` in lockstep; see `as_read`.

    Other seeds have other hashes. Raises MetropolisError if the other process fails.
    """
    hashes = str(seed % 1_000_000 + 1)
    if hashes == os.environ.get("PYTHONHASHSEED"):
        hashes = "0"
    with tempfile.TemporaryDirectory() as folder:
        history, failure, output = (
            Path(folder) / name for name in ("history", "failure", "output")
        )
        run = {"name": name, "agents": agents, "seed": seed, "options": dict(options or {})}
        path = json.dumps([str(entry) for entry in sys.path])
        with open(output, "wb") as errors:  # a pipe would be waited for, if the world keeps it
            ended = subprocess.run(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    BEGIN,
                    path,
                    history,
                    failure,
                    str(steps),
                    json.dumps(run),
                ],
                env={**os.environ, "PYTHONHASHSEED": hashes},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                check=False,
            )
        if not history.exists():
            if failure.exists():
                raise MetropolisError(failure.read_text())
            said = output.read_text(errors="replace").splitlines()
            raise MetropolisError(said[-1] if said else f"exit status {ended.returncode}")
        return [record_of(line) for line in history.read_bytes().splitlines()]


def as_read(beginning: Start, records: list[StepRecord]) -> list[StepRecord]:
    """A history as it is read from a file: actions have the types of JSON.

    Its first record, of step -1, has what the world begins with.
    """
    entities = {entity.name: entity for entity in beginning.entities}
    first = StepRecord(-1, {}, dict(sorted(entities.items())), beginning.events)
    return [record_of(line_of(record)) for record in (first, *records)]


def main(history: str, failure: str, steps: str, made: str) -> None:
    """Write the history, or the reason why there is none; `made`: `make_scenario`'s arguments."""
    of: dict[str, Any] = json.loads(made)
    try:
        scenario = make_scenario(**of)
        start = checked_start(scenario, of["seed"], {})
        records = Trial(scenario, start, lockstep(), of["seed"]).run(int(steps))
    except Exception as error:
        Path(failure).write_text(explained(error))
        raise SystemExit(1) from error
    lines = b"".join(line_of(record) + b"\n" for record in as_read(start, records))
    unfinished = Path(f"{history}.unfinished")
    unfinished.write_bytes(lines)
    unfinished.rename(history)
