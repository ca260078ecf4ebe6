"""The clock of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from metropolis.llm.base import Backend
from metropolis.sim.virtual import VirtualInstances


def clock_since(began_s: float) -> Callable[[], float]:
    """The clock of a run that began at the Unix time `began_s`."""
    return lambda: time.time() - began_s


class RunClock:
    """Counts the seconds of a run: virtual time if `backend` simulates instances, else wall time.

    It starts when it is made, and `start` restarts it. `stop` ends the time of the run, before its
    store and its files are closed.
    """

    def __init__(self, backend: Backend) -> None:
        self.virtual = backend if isinstance(backend, VirtualInstances) else None
        """The simulated instances, if any."""
        self.before_s = 0.0
        """The time at the start: that of the checkpoint from which the run continues."""
        self.start()

    def start(self) -> None:
        """Start at `before_s`."""
        self._stopped_s: float | None = None
        self._started_wall_s, self._started_s = time.perf_counter(), self._read_s()

    def stop(self) -> None:
        """Keep `now_s` as it is; wall time goes on."""
        self._stopped_s = self.now_s()

    def now_s(self) -> float:
        """The time of the run."""
        if self._stopped_s is not None:
            return self._stopped_s
        return self.before_s + self._read_s() - self._started_s

    @property
    def wall_s(self) -> float:
        """Wall time since the start."""
        return time.perf_counter() - self._started_wall_s

    def _read_s(self) -> float:
        return time.perf_counter() if self.virtual is None else self.virtual.now_sim_s
