"""The environment of a campaign: a store, a Ray cluster, and the start of runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from metropolis.bench import METROPOLIS
from metropolis.bench.recovery import world
from metropolis.bench.recovery.nodes import Nodes, ray_environment

MODES = ("out_of_order", "optimistic")
OPTIMISTIC = MODES[1]
LEASE_S = 2.0
"""Duration of the leases of a run in the store."""


class Environment:
    """A store that writes with every commit, and two Ray nodes; leaving `with` ends them."""

    def __init__(self, folder: Path, seed: int, mode: str) -> None:
        """Start everything in `folder`, whose path must be short, for runs in `mode`."""
        self.folder, self.seed, self.mode = folder, seed, mode
        from metropolis.store.embedded import EmbeddedServer  # metropolis[redis]

        token = ray_environment()
        configuration = {"XDG_CONFIG_HOME": str(folder / "configuration")}  # signing key
        self._variables = {**os.environ, **token, **configuration}
        (folder / "ray").mkdir()
        self.server = EmbeddedServer(folder / "store")
        try:
            self.nodes = None if mode == OPTIMISTIC else Nodes(folder / "ray", token)
        except BaseException:
            self.server.close()
            raise

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.nodes is not None:
            self.nodes.close()
        self.server.close()

    def start(
        self, out: Path, llm: str, *options: str, scenario: str = world.__file__
    ) -> subprocess.Popen[bytes]:
        """Start a new run in `out`; return its process."""
        about = [scenario, "--llm", f"vllm:{llm}", "--out", str(out)]
        return self._start(out, *about, "--seed", str(self.seed), *options)

    def start_stored(self, out: Path, llm: str, cluster: Nodes | None) -> subprocess.Popen[bytes]:
        """Start a run in the store, with two workers on Ray unless it is optimistic."""
        store = ["--store", self.server.url, "--lease", f"{LEASE_S:g}", "--mode", self.mode]
        if self.mode == OPTIMISTIC:
            return self.start(out, llm, *store)
        where = ["--ray-address", cluster.address] if cluster else []
        return self.start(out, llm, *store, "--workers", "ray:2", *where)

    def resume(self, out: Path) -> subprocess.Popen[bytes]:
        """Resume the run in `out`; return its process."""
        return self._start(out, "--resume", str(out))

    def _start(self, out: Path, *options: str) -> subprocess.Popen[bytes]:
        with summary_file(out).open("wb") as summary, errors_file(out).open("wb") as errors:
            return subprocess.Popen(
                [*METROPOLIS, "run", *options, "--quiet", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=summary,
                stderr=errors,
                env=self._variables,
                start_new_session=True,
            )


def summary_file(out: Path) -> Path:
    """Return the file with the summary of the run in `out`."""
    return out.with_suffix(".json")


def errors_file(out: Path) -> Path:
    """Return the file with the errors of the run in `out` since its last start."""
    return out.with_suffix(".err")
