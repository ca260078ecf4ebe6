"""The early end of a run, requested by a signal handler or another thread."""

from __future__ import annotations

from collections.abc import Callable

from metropolis.workers.watchdog import Watchdog


class Interruption:
    """Whether the end of a run has been requested, and the callbacks for it."""

    def __init__(self) -> None:
        self.requested = False
        self.wake: Callable[[], object] | None = None
        """Ends the main loop, while there is one."""
        self.watchdog: Watchdog | None = None

    def request(self) -> None:
        """End the run soon."""
        self.requested = True
        if (wake := self.wake) is not None:
            wake()
        if self.watchdog is not None:
            self.watchdog.ending()
