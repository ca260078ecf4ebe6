"""A custom policy and dispatcher: this file, and their names in pyproject.toml.

`pip install ./examples/own_policy`, then
`metropolis replay TRACE --policy short-prompts:patience_s=5 --dispatcher by-function`
"""

from math import inf
from zlib import crc32

from metropolis.dispatch.base import Dispatcher
from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError


class ShortPrompts(Policy):
    """Short prompts first; a second of an earlier arrival is worth `1000 / patience_s` tokens."""

    def __init__(self, patience_s: float = 60.0) -> None:
        if not 0 < patience_s < inf:
            raise MetropolisError(f"patience_s is {patience_s}; it should be above 0, and not inf")
        self._patience_s = patience_s

    def rank(self, request: QueuedRequest) -> int:
        """Requests with smaller ranks run first; only differences between ranks matter."""
        return int(request.prompt_tokens + 1000 * request.arrived_s / self._patience_s)


class ByFunction(Dispatcher):
    """Sends all requests of a function to one instance, which caches its instructions."""

    def place(self, request: QueuedRequest, now_s: float) -> int | None:  # noqa: ARG002
        """The instance of the function, or another one while that is closed."""
        taking = [one for one in range(len(self.fleet)) if one not in self.closed]
        return taking[crc32(request.function.encode()) % len(taking)] if taking else None
