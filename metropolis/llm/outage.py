"""A server that is unreachable, or limits the rate, as seen by all calls of one client."""

from __future__ import annotations

import sys

from metropolis.llm.base import LLMError

REPORTED_S = 2.0
"""Shorter outages are not reported."""


class Outage:
    """Whether there is an outage, its start, and whether to wait for its end.

    A lasting outage is reported on standard error once, and so is its end.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._is_reported = False

    def should_retry(self, error: LLMError, now_s: float) -> bool:
        """Whether to retry after `error`; False once the outage has lasted `patience_s`."""
        if self._since_s is None:
            self._since_s = now_s
        lasted_s = now_s - self._since_s
        retries = lasted_s < self._patience_s
        if retries and lasted_s >= REPORTED_S and not self._is_reported:
            self._is_reported = True
            _report(f"{error}; waiting up to {self._patience_s:g} s for it")
        return retries

    def end(self, now_s: float) -> None:
        """The server has answered."""
        if self._is_reported and self._since_s is not None:
            _report(f"the server answers again, after {now_s - self._since_s:.0f} s")
        self._since_s, self._is_reported = None, False


def _report(what: str) -> None:
    sys.stderr.write(f"metropolis: {what}\n")
