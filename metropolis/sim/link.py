"""Transfers between simulated instances, and when a prefill that needs one may start.

DroidSpeak (NSDI'26) loads the input (E) of the first recomputed layer first, and then the reused KV
layer by layer while the layers before are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Transfer(NamedTuple):
    """The times at which a transfer begins and ends to use its links."""

    begun_sim_s: float
    arrived_sim_s: float


class Links:
    """One outgoing and one incoming link of each instance.

    A link carries one transfer at a time, in the order of `begin`; a transfer takes both its links
    for the whole time, at the bandwidth of the slower one. `bytes_per_s` has one for each instance.
    """

    def __init__(self, bytes_per_s: Sequence[float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._outgoing_free_sim_s = [0.0] * len(bytes_per_s)
        self._incoming_free_sim_s = [0.0] * len(bytes_per_s)

    def bytes_per_s(self, source: int, target: int) -> float:
        """Bandwidth from `source` to `target`."""
        return min(self._bytes_per_s[source], self._bytes_per_s[target])

    def begin(self, source: int, target: int, bytes_: int, now_sim_s: float) -> Transfer:
        """Send `bytes_` as soon as both links are free."""
        begun_sim_s = max(
            now_sim_s, self._outgoing_free_sim_s[source], self._incoming_free_sim_s[target]
        )
        arrived_sim_s = begun_sim_s + bytes_ / self.bytes_per_s(source, target)
        self._outgoing_free_sim_s[source] = self._incoming_free_sim_s[target] = arrived_sim_s
        return Transfer(begun_sim_s, arrived_sim_s)


def start_delay(transfer_s: float, prefill_s: float, overlapped: bool, first_s: float) -> float:
    """Seconds from the start of a transfer until the prefill may start.

    `first_s`: time of the first piece, which the first computed layer needs. Not overlapped, the
    prefill starts when all has arrived. Overlapped layer by layer, it starts with the first piece,
    or so late that it ends no earlier than the transfer.
    """
    return max(first_s, transfer_s - prefill_s) if overlapped else transfer_s
