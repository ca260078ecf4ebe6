"""Restarts of a server under a run: what its controller must find again to go on.

A restarted server may have lost its newest commits, as one that loads a snapshot, or whose
append-only file was not yet on disk. It refuses all changes of the run until the controller's
process has accepted what is left (accept.lua).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metropolis.store.decoding import order_of

RESTARTED = "RESTARTED"
"""The scripts' error of a change after a restart."""
_CHANGES = frozenset({"collect", "dispatch", "keep", "retract"})
"""The controller's changes; their replies are the number of these, and a result."""
_ACCEPTING = _CHANGES | {"nodes"}
"""Calls in the controller's event loop. Those of its heartbeat and of local workers may come while
that is held up and has not read yet what the server confirmed.
"""


@dataclass
class Confirmed:
    """What a server has confirmed to the process that holds the lease with `fence`, if any."""

    fence: int | None = None
    changes: int = 0
    acknowledgement: str = "0"
    """The last one that was read."""

    def result(self, name: str, reply: Any) -> Any:
        """The result of the script `name` in its reply."""
        if name not in _CHANGES:
            return reply
        changes, result = reply
        self.changes = max(self.changes, changes)
        return result

    def read(self, acknowledgement: str) -> None:
        """The server has sent this acknowledgement."""
        self.acknowledgement = max(self.acknowledgement, acknowledgement, key=order_of)

    def may_accept(self, name: str, error: Exception) -> bool:
        """Whether `error` of the script `name` is due to a restart that the caller may accept."""
        return self.fence is not None and str(error) == RESTARTED and name in _ACCEPTING

    def accept(self, prefix: str) -> tuple[str, str, int | None, int, str]:
        """The call of the script that accepts the restart, or fails if anything confirmed is lost.

        `prefix`: of the run's keys.
        """
        return "accept", prefix, self.fence, self.changes, self.acknowledgement
