"""Answers from an earlier run's journal, in place of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from metropolis.durable import reachable
from metropolis.llm.base import Completion, RefusedError, Request
from metropolis.llm.journal import key_of, read_journal
from metropolis.types import MetropolisError

REPLAY = "replay"


class Replay:
    """A backend that answers only from the journal at `path`."""

    def __init__(self, path: str | Path, *, name: str = REPLAY) -> None:
        self.path, self.name = Path(path), name
        if not reachable(self.path).is_file():
            flaw = "is not a file" if self.path.exists() else "does not exist"
            raise MetropolisError(f"{self.path} {flaw}; name the journal of an earlier run")
        self._answers = dict(read_journal(self.path))

    def __str__(self) -> str:
        return f"the journal {self.path}"

    async def check(self) -> None:
        """Nothing to check: the file has been read."""

    async def complete(self, request: Request) -> Completion:
        """The answer of the earlier run; raises RefusedError when that sent no such request."""
        known = self._answers.get(key_of(request))
        if known is None:
            raise RefusedError(
                f"{self} has no answer to {request.where}: the earlier run sent another request; "
                "replay with the same world, agents, seed and models"
            )
        return known

    async def stream(self, request: Request) -> AsyncGenerator[str | Completion, None]:
        """The answer in one piece."""
        completion = await self.complete(request)
        yield completion.text
        yield completion

    async def close(self) -> None:
        """Nothing to free."""
