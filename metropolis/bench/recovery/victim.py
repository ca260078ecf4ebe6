"""A run under kills, and the check of its result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from metropolis.bench._processes import alive, descendants
from metropolis.bench.recovery.damage import IN_PLACE, damage
from metropolis.bench.recovery.plan import Kill, on_cluster
from metropolis.bench.recovery.purchases import ExecutedKill, Purchases, purchases_of
from metropolis.bench.recovery.ray_processes import actors_of, raylet_of
from metropolis.bench.recovery.setup import OPTIMISTIC, Environment, errors_file, summary_file
from metropolis.bench.stub_server import stub_server
from metropolis.runtime.folder.history import read_history
from metropolis.workers.leases import retry

MEAN_S = 0.04
"""Mean of the stub's latencies."""
PATIENCE_S = 120.0
"""Time within which a run must end after the last kill."""
POLL_S = 0.01
WORKER_EXIT_S = 30.0
"""How long workers may outlive their run: on a busy machine a worker lived for more than 10 s after
its node was killed. Its claims have expired by then, so it can commit nothing.
"""
VICTIM_POLL_S = 0.1
"""Interval between searches for a victim that is not running."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run under kills."""

    on_cluster: bool
    kills: list[str]
    started: int
    """Processes started."""
    refused: int
    """Processes that ended because of a damaged file."""
    wall_s: float
    purchases: Purchases
    flaws: list[str]
    """One sentence per flaw; empty: the run equals the uninterrupted one."""


@dataclass
class Run:
    """One run of a campaign, from start to end."""

    environment: Environment
    number: int
    started: int = 0
    refused: int = 0
    executed: list[ExecutedKill] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out = self.environment.folder / f"run-{self.number}"
        nodes = self.environment.nodes
        self.cluster = nodes if on_cluster(self.environment.seed, self.number) else None
        self._child: subprocess.Popen[bytes] | None = None
        self._damaged: tuple[Path, bytes, bytes] | None = None
        """A file, and its contents before and after damage."""

    def run(
        self, left: list[Kill], reference: Mapping[str, Any], progress: Callable[[int], None]
    ) -> Outcome:
        """Apply the kills of `left` until the run ends, and remove them from `left`."""
        began_s, log = time.monotonic(), self.out.with_suffix(".log")
        with stub_server(MEAN_S, self.environment.seed, "--log", str(log)) as url:
            self._url = url
            try:
                self._run_to_end(left, progress)
            finally:
                self._end()
        wall_s = time.monotonic() - began_s
        purchases = purchases_of(log, self.executed)
        if not self.flaws:
            self._compare(reference, purchases)
        kills = [kill.victim for kill in self.executed]
        starts = self.started, self.refused
        return Outcome(self.cluster is not None, kills, *starts, wall_s, purchases, self.flaws)

    # --- main loop

    def _run_to_end(self, left: list[Kill], progress: Callable[[int], None]) -> None:
        self._start()
        quiet_since_s = time.monotonic()
        while not self.flaws:
            exists = not left or self._victim_exists(left[0])
            pause_s = left[0].pause_s if left else PATIENCE_S
            status = self._wait(pause_s if exists else VICTIM_POLL_S)
            if status == 0:
                return
            if status is not None:
                self._handle_exit(status)
                self._start()
            elif time.monotonic() - quiet_since_s > PATIENCE_S:
                self.flaws.append(f"the run did not end {PATIENCE_S:g} s after the last kill")
            elif left and exists and self._execute(left[0]):
                left.pop(0)
                quiet_since_s = time.monotonic()
                progress(1)

    def _start(self) -> None:
        """Start or resume the run."""
        self.started += 1
        self._may_stop = False
        if (self.out / "run.json").exists():
            self._child = self.environment.resume(self.out)
        else:  # first start, or killed before run.json existed
            shutil.rmtree(self.out, ignore_errors=True)
            self._child = self.environment.start_stored(self.out, self._url, self.cluster)

    def _wait(self, pause_s: float) -> int | None:
        """Return the run's exit status, or None if it still runs after `pause_s`."""
        deadline_s = time.monotonic() + pause_s
        assert self._child is not None
        while (status := self._child.poll()) is None and time.monotonic() < deadline_s:
            self._record_deaths()
            time.sleep(POLL_S)
        return status

    def _record_deaths(self) -> None:
        """Record when all workers hit by a kill have ended."""
        for kill in self.executed:
            if kill.ended_s == inf and not any(map(alive, kill.pids)):
                kill.ended_s = time.monotonic()

    def _handle_exit(self, status: int) -> None:
        """Handle an exit of the run. It may exit if its own Ray was killed, or if the store was
        killed before the run was taken.
        """
        errors = errors_file(self.out).read_text(errors="replace").strip().splitlines()
        if status == 2 and f"{self.out}" in (errors or [""])[-1] and self._restore_file():
            self.refused += 1
        elif not self._may_stop:
            self.flaws.append(
                f"the run stopped with status {status}: {errors[-1] if errors else ''}"
            )

    def _end(self) -> None:
        """Kill all remaining processes of the run."""
        assert self._child is not None
        left = [] if self._child.poll() is not None else descendants(self._child.pid)
        self._child.kill()
        self._child.wait()
        deadline_s = time.monotonic() + WORKER_EXIT_S
        while any(s.ended_s == inf for s in self.executed) and time.monotonic() < deadline_s:
            self._record_deaths()
            time.sleep(POLL_S)
        for kill in self.executed:
            if kill.ended_s == inf:
                survivors = [pid for pid in kill.pids if alive(pid)]
                self.flaws.append(f"the kill of a {kill.victim} left workers: {survivors}")
                left += survivors
        for pid in filter(alive, left):
            os.kill(pid, signal.SIGKILL)

    # --- kills

    def _victim_exists(self, kill: Kill) -> bool:
        """Return whether the victim exists; the pause before the kill starts then."""
        assert self._child is not None
        if kill.victim == "worker":
            return bool(self._actors())
        if kill.victim == "file":
            return self._is_held()
        return kill.victim != "node" or bool(self.cluster or raylet_of(self._child.pid))

    def _execute(self, kill: Kill) -> bool:
        """Execute the kill; return whether the victim still existed."""
        assert self._child is not None
        began_s = time.monotonic()
        pids: list[int] = []
        match kill.victim:
            case "worker":
                if not (actors := self._actors()):
                    return False
                pids = [actors[int(kill.which * len(actors))]]
                os.kill(pids[0], signal.SIGKILL)
            case "controller":
                pids = self._actors()
                self._child.kill()
                self._child.wait()
                self._start()
            case "file":
                pids = self._actors()
                self._child.kill()
                self._child.wait()
                self._damage(kill)
                self._start()
            case "store":
                self._may_stop = self._may_stop or not self._is_held()
                os.kill(self.environment.server.pid, signal.SIGKILL)
                time.sleep(kill.away_s)
                self.environment.server.restart()
            case "node" if self.cluster is not None:
                pids = self.cluster.kill_second(kill.away_s)
            case "node":
                raylet = raylet_of(self._child.pid)
                if raylet is None:
                    return False
                pids, self._may_stop = self._actors(), True
                os.kill(raylet, signal.SIGKILL)
        self.executed.append(ExecutedKill(kill.victim, began_s, pids))
        self._record_deaths()
        return True

    def _damage(self, kill: Kill) -> None:
        """Damage one of the run's files, except store.json, which this bench reads."""
        checkpoints = (self.out / "checkpoints").glob("*.json.gz")
        names = ("history.jsonl", "calls.jsonl", "journal.jsonl", "run.json")
        files = [*(self.out / name for name in names), *sorted(checkpoints)]
        path = files[int(kill.which * len(files))]
        content = path.read_bytes()
        damage(path, Random(f"damage {kill.which}"), self.out, IN_PLACE)
        self._damaged = path, content, path.read_bytes()

    def _restore_file(self) -> bool:
        """Restore a damaged file that the run has not repaired; return whether there was one."""
        if self._damaged is None:
            return False
        path, content, since = self._damaged
        self._damaged = None
        if path.read_bytes() != since:
            return False
        path.write_bytes(content)
        return True

    def _is_held(self) -> bool:
        """Return whether the current process holds the run."""
        assert self._child is not None
        if not (self.out / "store.json").exists():
            return False
        name = json.loads((self.out / "store.json").read_text())["run"]
        server = self.environment.server
        if name not in retry(server.runs):
            return False
        holder = retry(server.store(name).inspect).holder
        return holder is not None and holder.split(":")[1] == f"{self._child.pid}"

    def _actors(self) -> list[int]:
        if self.cluster is not None:
            return self.cluster.actors()
        assert self._child is not None
        return actors_of(self._child.pid)

    # --- result

    def _compare(self, reference: Mapping[str, Any], purchases: Purchases) -> None:
        """Record differences from the summary `reference` of the uninterrupted run."""
        try:
            found = json.loads(summary_file(self.out).read_text())
        except ValueError as error:
            self.flaws.append(f"{summary_file(self.out)}: is not one JSON summary ({error})")
            return
        self.flaws += [
            f"{name} is {found[name]}, but {reference[name]} without kills"
            for name in ("history_sha256", "steps", "calls")
            if found[name] != reference[name]
        ]
        lines = read_history(self.out / "history.jsonl")
        if [json.loads(line.content)["step"] for line in lines] != list(range(reference["steps"])):
            self.flaws.append("history.jsonl does not hold every step exactly once")
        name = json.loads((self.out / "store.json").read_text())["run"]
        about = retry(self.environment.server.store(name).inspect)
        committed = about.counts["agent_steps"]
        if committed != reference["agents"] * reference["steps"]:
            self.flaws.append(
                f"{committed} agent-steps were committed instead of "
                f"{reference['agents'] * reference['steps']}"
            )
        in_vain = purchases.unique - reference["calls"]
        if in_vain < 0 or (in_vain and self.environment.mode != OPTIMISTIC):
            self.flaws.append(f"{purchases.unique} requests were made, not {reference['calls']}")
        if purchases.beyond:
            self.flaws.append(
                f"{purchases.beyond} answers were bought twice but were not in flight at a kill"
            )
        time.sleep(about.lease_left_s)  # 0 unless the store was down at the end
        retry(self.environment.server.remove, name)
