"""The Redis store for an event loop: no threads, and calls share round trips."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import redis

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store import commands
from metropolis.store.base import Acknowledged, AsyncStore, Store
from metropolis.store.claim import NO_LOOKAHEAD, Claim, Lookahead
from metropolis.store.encoding import EncodedCommit
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.store.pipelined_connection import PipelinedConnection
from metropolis.store.redis_inspection import damage_reported
from metropolis.store.restarts import Confirmed
from metropolis.store.scripts import script
from metropolis.types import AgentId, Dispatch, Step

T = TypeVar("T")
MOST = 1000
"""Maximum number of acknowledgements per read."""


class CommandStore(Store):
    """A store whose calls are scripts of a server."""

    url: str
    prefix: str
    """The prefix of the run's keys."""
    shown: str
    """The server and the run, for messages."""
    confirmed: Confirmed

    @abstractmethod
    def store_errors(self) -> AbstractContextManager[None]:
        """Convert the server's errors to StoreErrors."""

    @abstractmethod
    def written(self, claim: Claim, execution: Execution) -> EncodedCommit:
        """The writes of a commit."""

    @abstractmethod
    def reaches(self, ahead: Mapping[AgentId, Lookahead]) -> dict[AgentId, str]:
        """Encode lookahead as the scripts expect it."""


class AsyncRedisStore(AsyncStore):
    """See AsyncStore."""

    def __init__(self, store: CommandStore) -> None:
        super().__init__(store)
        self._redis = store
        self._commands = PipelinedConnection(store.url)
        self._blocking: list[PipelinedConnection] = []
        """Connections for commands that block, one command at a time each: a server answers the
        commands of a connection in order."""
        self._unanswered: dict[str, int] = {}
        """The number of each worker's call of `claims`, until its reply has come."""

    async def claims(
        self, worker: str, lease_s: float, wait_s: float, *, most: int, own: bool
    ) -> list[Claim]:
        """See Store."""
        number = self._unanswered.setdefault(worker, commands.new_call_number())
        asked = worker, lease_s, wait_s, 0, most, own, number
        found = await self._do(commands.claims(self._redis.prefix, *asked))
        self._unanswered.pop(worker, None)
        return found

    async def keep_answer(self, key: Key, completion: Completion, buyer: str) -> None:
        """See Store."""
        await self._do(commands.keep_answer(key, completion, buyer))

    async def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        written = self._redis.written(claim, execution)
        keeps = self._redis.info().retractable
        return await self._do(commands.commit(claim, written, answers, buyer, lease_s, keeps=keeps))

    async def acknowledgements(self, after: str, wait_s: float) -> list[Acknowledged]:
        """See Store."""
        about = self._redis.prefix, self._redis.shown, self._redis.confirmed
        return await self._do(commands.acknowledgements(*about, after, wait_s, MOST))

    async def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """See Store."""
        reaches = self._redis.reaches(ahead)
        await self._do(commands.dispatch(fence, clusters, edges, floor, reaches))

    async def close(self) -> None:
        """See AsyncStore."""
        await asyncio.gather(*(one.close() for one in (self._commands, *self._blocking)))

    async def _do(self, steps: commands.Call[T]) -> T:
        reply = None
        try:
            while True:
                with damage_reported(self._redis.shown):
                    command = steps.send(reply)
                if isinstance(command, commands.Script):
                    reply = await self._run(command)
                else:
                    reply = await self._idle_connection().ask(*command.arguments)
        except redis.RedisError:
            with self._redis.store_errors():
                raise
        except StopIteration as end:
            found: T = end.value
            return found

    def _idle_connection(self) -> PipelinedConnection:
        for connection in self._blocking:
            if connection.is_idle:
                return connection
        self._blocking.append(PipelinedConnection(self._redis.url))
        return self._blocking[-1]

    async def _run(self, command: commands.Script) -> object:
        confirmed, prefix = self._redis.confirmed, self._redis.prefix
        try:
            found = await self._evaluate(command.name, prefix, *command.arguments)
        except redis.ResponseError as error:
            if not confirmed.may_accept(command.name, error):
                raise
            await self._evaluate(*confirmed.accept(prefix))
            found = await self._evaluate(command.name, prefix, *command.arguments)
        return confirmed.result(command.name, found)

    async def _evaluate(self, name: str, prefix: str, *given: object) -> object:
        text, digest = script(name)
        arguments = 1, prefix, *given
        try:
            return await self._commands.ask("EVALSHA", digest, *arguments)
        except redis.exceptions.NoScriptError:
            return await self._commands.ask("EVAL", text, *arguments)
