"""A run in a store, as a process to kill:

python -m tests.runtime.killable OUT STORE STEPS [MODE [WORKERS [RAY_ADDRESS]]]
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.live.simulation import Simulation
from tests.runtime.walkers import Meadow, Walker, author

SEED = 5
LATENCY_S = 0.01
SLOW_S = 0.25
"""Latency while a file named slow exists."""
COMPUTES_S = 0.05
"""How long a call keeps its process busy then: the first of two workers would claim everything."""
LEASE_S = 0.6


class Logged(Scripted):
    """Answers with latency, and logs each bought call and its process, one line per call."""

    def __init__(self, path: Path) -> None:
        super().__init__(author)
        self._path = path

    async def complete(self, request: Request) -> Completion:
        is_slow = self._path.with_name("slow").exists()
        if is_slow:
            time.sleep(COMPUTES_S)
        await asyncio.sleep(SLOW_S if is_slow else LATENCY_S)
        completion = await super().complete(request)
        _append(self._path, f"{request.agent} {request.step} {request.digest}\n")
        _append(self._path.with_name("buyers"), f"{os.getpid()}\n")
        return completion


def _append(path: Path, line: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


def simulation(
    out: Path,
    store: str | None,
    workers: int | str = 1,
    ray_address: str | None = None,
    mode: str = "out_of_order",
    lease_s: float = LEASE_S,
) -> Simulation:
    """Make a simulation of six walkers; resume the run in `out` if there is one."""
    world = Meadow(6, side=9, joint=1)
    return Simulation(
        world,
        [Walker(name) for name in world.names],
        Client(Logged(out.parent / "bought"), retries=0),
        seed=SEED,
        out=out,
        resume=(out / "run.json").exists(),
        store=store,
        workers=workers,
        ray_address=ray_address,
        mode=mode,
        waste_budget=1.0,
        lease_s=lease_s,
    )


if __name__ == "__main__":
    folder, address, steps, *rest = sys.argv[1:]
    mode, *where = rest or ["out_of_order"]
    run = simulation(Path(folder), address, *where, mode=mode)
    sys.stdout.write(run.run(int(steps)).history_sha256)
