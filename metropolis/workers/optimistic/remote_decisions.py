"""Agents that run ahead decide in other processes.

The run observes, resolves, predicts and commits, and makes all calls: answers are kept, joined and
ranked as those of a run in one process. A remote worker gets an agent's mind and observation, and
returns its action and the changes of its mind. If the worker is lost, so are its executions; they
are repeated, with the answers that are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from metropolis.llm.agent import Sender
from metropolis.llm.base import Completion, Request
from metropolis.speculation.base import ExecutionId
from metropolis.types import AgentId, MetropolisError
from metropolis.workers.invocations import cancelled_from_within
from metropolis.workers.module_shipping import not_importable
from metropolis.workers.optimistic.decisions import WorkerLostError
from metropolis.workers.optimistic.executions import OneProceed
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.workers.optimistic.remote_messages import (
    Answer,
    Called,
    CallNumber,
    Closed,
    Command,
    Decided,
    Message,
    Start,
    Stop,
    pickled_error,
)
from metropolis.world.base import Agent
from metropolis.world.parts import Parts, apply_changes, changed_parts

LOSSES_MAX = 3
"""A worker that is lost this often, without a decision in between, ends the run."""


class Link(Protocol):
    """The connection to a ProceedHost in another process."""

    def send(self, batch: int, commands: Sequence[Command]) -> None:
        """Let the worker receive the batch of this number."""

    async def receive(self) -> Sequence[Message]:
        """Its next messages. Raises WorkerLostError if the process has ended, and its errors."""

    def close(self) -> None:
        """End the process."""


class RemoteDecisions:
    """See Decisions; agent i decides in worker i modulo `count`.

    `connect` starts a worker. `dumps` and `loads` pickle observations, actions and errors.
    """

    def __init__(
        self,
        connect: Callable[[], Link],
        count: int,
        minds: Minds,
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
    ) -> None:
        self._workers = [_Worker(connect, dumps, loads) for _ in range(count)]
        self._minds, self._dumps = minds, dumps
        self._serving: list[asyncio.Task[None]] = []

    def start(self, client: Sender, on_failure: Callable[[Exception], object]) -> None:
        """See Decisions."""
        loop = asyncio.get_running_loop()
        self._serving = [loop.create_task(one.serve(client, on_failure)) for one in self._workers]

    async def end(self) -> None:
        """See Decisions."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def decide(self, one: OneProceed, agent: Agent, observation: Any) -> tuple[Any, Mind]:
        """See Decisions."""
        try:
            pickled = self._dumps(observation)
        except Exception as error:  # an author's object may raise anything
            raise MetropolisError(
                f"step {one.step}, agent {one.name!r}: what it observes cannot be sent to its "
                f"worker ({error}); observations should be plain data"
            ) from error
        before = self._minds.of(one.number, agent, one.before.saved)
        worker = self._workers[one.number % len(self._workers)]
        decided = await worker.decide(one, before, pickled)
        one.llm.adopt(decided.made)
        changed = decided.mind
        saved = apply_changes(before.saved, changed) if changed else before.saved
        return worker.loads(decided.action), Mind(None, saved, decided.draws)


@dataclass(eq=False)
class _Open:
    """An execution that runs in a worker."""

    one: OneProceed
    ended: asyncio.Future[Decided]
    calls: dict[CallNumber, asyncio.Task[None]] = field(default_factory=dict)


class _Worker:
    """A worker, and the ones that replace it when it is lost."""

    def __init__(
        self,
        connect: Callable[[], Link],
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
    ) -> None:
        self._dumps, self.loads = dumps, loads
        self._connect = connect
        self._open: dict[ExecutionId, _Open] = {}
        self._losses = 0
        """Times that the worker was lost since the last decision."""
        self._begin()

    def _begin(self) -> None:
        self._link = self._connect()
        self._batch = 0
        self._outgoing: list[Command] = []
        self._known: dict[AgentId, Parts] = {}
        """The agents' minds that the worker knows; see ProceedHost."""

    async def serve(self, client: Sender, on_failure: Callable[[Exception], object]) -> None:
        """Handle the worker's messages until cancelled, or until something fails."""
        self._client = client
        try:
            while True:
                try:
                    messages = await self._link.receive()
                except WorkerLostError as error:
                    self._replace(error)
                    continue
                for message in messages:
                    self._handle(message)
        except Exception as error:  # noqa: BLE001 -- it ends the run
            on_failure(error)
        finally:
            self._link.close()

    async def decide(self, one: OneProceed, before: Mind, observation: bytes) -> Decided:
        """The decision of one execution; `before` is the agent's mind. Raises as Decisions."""
        mind = changed_parts(self._known.get(one.number, {}), before.saved)
        self._known[one.number] = before.saved
        opened = self._open[one.id] = _Open(one, asyncio.get_running_loop().create_future())
        self._send(Start(one.id, one.number, one.step, mind, before.draws, observation))
        try:
            return await opened.ended
        finally:
            del self._open[one.id]
            for call in opened.calls.values():
                call.cancel()
            if opened.ended.cancelled():
                self._send(Stop(one.id))

    def _send(self, command: Command) -> None:
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(command)

    def _flush(self) -> None:
        if self._outgoing:
            commands, self._outgoing = self._outgoing, []
            self._link.send(self._batch, commands)
            self._batch += 1

    def _replace(self, error: WorkerLostError) -> None:
        """Replace the worker, which is lost; its executions are, too."""
        self._losses += 1
        if self._losses == LOSSES_MAX:
            raise MetropolisError(
                f"a worker ended {LOSSES_MAX} times without a decision in between: {error}"
            ) from error
        self._begin()
        for opened in self._open.values():
            if not opened.ended.done():
                opened.ended.set_exception(WorkerLostError(str(error)))

    def _handle(self, message: Message) -> None:
        opened = self._open.get(message.id)
        if opened is None or opened.ended.done():
            return  # the execution was aborted
        if isinstance(message, Called):
            task = asyncio.get_running_loop().create_task(self._relay(opened.one, message))
            opened.calls[message.call] = task
        elif isinstance(message, Closed):
            opened.calls.pop(message.call).cancel()
        elif isinstance(message, Decided):
            self._losses = 0
            opened.ended.set_result(message)
        else:
            error = self.loads(message.error)
            if isinstance(error, ImportError):
                error = not_importable(error)
            opened.ended.set_exception(error)

    async def _relay(self, one: OneProceed, called: Called) -> None:
        """Make a call of an execution; its log shows the call even if the execution is lost."""
        request, log = replace(called.request, speculative=not one.sure), one.llm.log
        model = request.model or self._client.backend.name
        index = log.add(one.number, frozenset(), 0, request.function, model, None)
        completion: Completion | None = None
        try:
            async with aclosing(self._pieces(request, is_stream=called.is_stream)) as items:
                async for item in items:
                    if isinstance(item, Completion):
                        completion = item
                    self._send(Answer(called.call, item))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._send_error(called, cancelled_from_within(one.step, one.name))
        except Exception as error:  # noqa: BLE001 -- raised in the agent
            self._send_error(called, error)
        finally:
            log.end(index, completion)

    def _send_error(self, called: Called, error: Exception) -> None:
        self._send(Answer(called.call, pickled_error(error, self._dumps, self.loads)))

    async def _pieces(
        self, request: Request, *, is_stream: bool
    ) -> AsyncGenerator[str | Completion, None]:
        if not is_stream:
            yield await self._client.call(request)
            return
        async with aclosing(self._client.stream(request, lambda _: None)) as items:
            async for item in items:
                yield item
