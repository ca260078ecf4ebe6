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
from pathlib import Path
from typing import Any

from metropolis.rules.rules import lockstep
from metropolis.runtime.checks.randomized_runs import Trial, checked_start
from metropolis.runtime.folder.history import line_of, record_of
from metropolis.types import MetropolisError, Step
from metropolis.world.record import StepRecord
from metropolis.world.scenario import make_scenario


def records_with_other_hashes(
    name: str, agents: int | None, seed: int, steps: Step
) -> list[StepRecord]:
    """The history of the world `name` in lockstep; actions have the types of JSON.

    Raises MetropolisError if the other process fails.
    """
    hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history"
        run = {"name": name, "agents": agents, "seed": seed, "steps": steps}
        ended = subprocess.run(
            [sys.executable, "-P", "-m", __name__, path, json.dumps(run)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if ended.returncode:
            last = (ended.stderr.splitlines() or [f"exit status {ended.returncode}"])[-1]
            raise MetropolisError(f"it ends with an error: {last}")
        return [record_of(line) for line in path.read_bytes().splitlines()]


def main(path: str, run: str) -> None:
    """Write the history to `path`; `run` has the arguments above as JSON."""
    of: dict[str, Any] = json.loads(run)
    try:
        scenario = make_scenario(of["name"], agents=of["agents"], seed=of["seed"])
        start = checked_start(scenario, of["seed"], {})
        records = Trial(scenario, start, lockstep(), of["seed"]).run(of["steps"])
    except MetropolisError as error:
        raise SystemExit(f"{error}") from error
    Path(path).write_bytes(b"".join(line_of(record) + b"\n" for record in records))


if __name__ == "__main__":
    main(*sys.argv[1:])
