"""The part of a remote worker that runs agents' `proceed`; see `remote_decisions.py`.

It holds no data of the run but agents' minds, which the run sends, and makes no calls: it asks the
run to make them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from metropolis.llm.agent import LLM
from metropolis.llm.base import Completion, Request
from metropolis.llm.call_log import CallLog
from metropolis.llm.model_choice import ModelChoice
from metropolis.names import cut
from metropolis.speculation.base import ExecutionId
from metropolis.types import AgentError, AgentId, MetropolisError, Step
from metropolis.workers.event_loop import idles
from metropolis.workers.invocations import Invocations, cancelled_from_within
from metropolis.workers.local import LocalWorker
from metropolis.workers.optimistic.minds import Mind, Minds
from metropolis.workers.optimistic.remote_messages import (
    Answer,
    Called,
    CallNumber,
    Closed,
    Command,
    Decided,
    Message,
    Raised,
    Start,
    pickled_error,
)
from metropolis.workers.worker_spec import WorkerSpec
from metropolis.world.base import Agent, World
from metropolis.world.parts import Parts, apply_changes, changed_parts
from metropolis.world.user_errors import text_of


@dataclass(frozen=True)
class HostSpec:
    """The static part of a run, for its remote workers.

    `began_s` is the Unix time at which the run's clock was 0, and `stall_s` is Watchdog's.
    """

    world: World
    agents: Sequence[Agent]
    model: str
    """The model of calls for which `models` names none."""
    models: ModelChoice
    seed: int
    keep_text: bool
    began_s: float
    invocations: Invocations
    stall_s: float

    @classmethod
    def of(cls, spec: WorkerSpec, local: LocalWorker) -> HostSpec:
        """The description of the run of `spec`, on the clock of `local`."""
        return cls(
            spec.world,
            spec.agents,
            spec.client.backend.name,
            spec.client.models,
            spec.seed,
            keep_text=spec.keep_text,
            began_s=time.time() - local.clock(),
            invocations=spec.invocations,
            stall_s=spec.stall_s,
        )


class ProceedHost:
    """Runs `proceed` of one run's agents, on the event loop or in threads.

    `dumps` and `loads` pickle observations, actions and errors.
    """

    def __init__(
        self, spec: HostSpec, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]
    ) -> None:
        """Raises MetropolisError if an agent cannot be saved."""
        self.spec, self._dumps, self._loads = spec, dumps, loads
        self._names = [agent.name for agent in spec.agents]
        self._minds = Minds(spec.agents, spec.seed)
        self._known: dict[AgentId, Parts] = {}
        """The minds before the agents' last executions."""
        self._tasks: dict[ExecutionId, asyncio.Task[None]] = {}
        self._calls: dict[CallNumber, tuple[ExecutionId, _Inbox]] = {}
        self._numbers = count()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._batches: dict[int, Sequence[Command]] = {}
        """Batches that have overtaken earlier ones, by number."""
        self._next_batch = 0
        self._local = LocalWorker(
            spec.world,
            spec.agents,
            _Relay(self, 0),
            spec.seed,
            keep_text=spec.keep_text,
            invocations=spec.invocations,
        )

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """The executions that run."""
        return self._tasks.values()

    @property
    def open_calls(self) -> int:
        """The number of calls that are not answered."""
        return len(self._calls)

    async def messages(self) -> list[Message]:
        """The next messages, in order; waits for the first."""
        found = [await self._messages.get()]
        while not self._messages.empty():
            found.append(self._messages.get_nowait())
        return found

    def receive(self, batch: int, commands: Sequence[Command]) -> None:
        """Carry out `commands`, of the batch of this number, after all earlier ones."""
        self._batches[batch] = commands
        while (due := self._batches.pop(self._next_batch, None)) is not None:
            self._next_batch += 1
            for command in due:
                self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Start):
            self._start(command)
        elif isinstance(command, Answer):
            if command.call in self._calls:
                self._answer(command)
        else:
            self._stop(command.id)

    def _answer(self, answer: Answer) -> None:
        id, inbox = self._calls[answer.call]
        item = answer.item
        if isinstance(item, bytes):
            try:
                item = self._loads(item)
            except Exception as error:  # noqa: BLE001 -- it ends the execution
                self._stop(id)
                self._messages.put_nowait(Raised(id, self._unpicklable(error)))
                return
        inbox.put(item)

    def _unpicklable(self, error: Exception) -> bytes:
        """What to raise if the error of a call cannot be unpickled because of `error`."""
        if not isinstance(error, ImportError):  # otherwise the run says what to do
            error = MetropolisError(
                "a worker cannot unpickle the error of a call "
                f"({type(error).__name__}: {text_of(error)}); its class should hold plain data"
            )
        return pickled_error(error, self._dumps, self._loads)

    def _stop(self, id: ExecutionId) -> None:
        if (task := self._tasks.pop(id, None)) is not None:
            self._end_calls(id)
            task.cancel()

    def _start(self, start: Start) -> None:
        saved = apply_changes(self._known.get(start.agent, {}), start.mind)
        self._known[start.agent] = saved
        loop = asyncio.get_running_loop()
        self._local.track_tasks(loop)
        log = CallLog(lambda: time.time() - self.spec.began_s, idles(loop))
        self._tasks[start.id] = loop.create_task(self._proceed(start, saved, log))

    async def _proceed(self, start: Start, saved: Parts, log: CallLog) -> None:
        number, name = start.agent, self._names[start.agent]
        message: Message
        try:
            agent = self._minds.take(number, Mind(None, saved, start.draws), start.step)
            llm = LLM(
                _Relay(self, start.id),
                agent=number,
                step=start.step,
                seed=self.spec.seed,
                program=name,
                log=log,
                keep_text=self.spec.keep_text,
            )
            action = await self._local.decide(agent, self._observation(start, name), llm)
            mind = self._minds.of(number, agent, saved)
            changes = changed_parts(saved, mind.saved)
            pickled = self._pickled_action(start.step, name, action)
            message = Decided(start.id, pickled, changes, mind.draws, llm.made)
        except asyncio.CancelledError:
            if start.id not in self._tasks:
                raise
            message = self._raised(start, cancelled_from_within(start.step, name))
        except BaseException as error:  # noqa: BLE001 -- raised in the run
            message = self._raised(start, error)
        self._tasks.pop(start.id, None)
        self._end_calls(start.id)
        self._messages.put_nowait(message)

    def _observation(self, start: Start, name: str) -> Any:
        try:
            return self._loads(start.observation)
        except ImportError:
            raise  # the run says what to do
        except Exception as error:
            raise AgentError(
                f"step {start.step}, agent {name!r}: its worker cannot unpickle what it observes "
                f"({type(error).__name__}: {text_of(error)}); observations should be plain data"
            ) from error

    def _pickled_action(self, step: Step, name: str, action: Any) -> bytes:
        try:
            return self._dumps(action)
        except Exception as error:
            raise AgentError(
                f"step {step}, agent {name!r}: its action {cut(action)} cannot be sent "
                f"({error}); it should be plain data"
            ) from error

    def _raised(self, start: Start, error: BaseException) -> Raised:
        if not isinstance(error, Exception):  # it would end the process of the run
            name = self._names[start.agent]
            error = AgentError(f"step {start.step}, agent {name!r}: raised {type(error).__name__}")
        return Raised(start.id, pickled_error(error, self._dumps, self._loads))

    def _end_calls(self, id: ExecutionId) -> None:
        """Cancel the calls that the execution has left: the run answers them no more."""
        for of, inbox in self._calls.values():
            if of == id:
                inbox.items.put_nowait(None)

    @contextmanager
    def call(
        self, id: ExecutionId, request: Request, on_end: Callable[[Completion], object] | None
    ) -> Iterator[asyncio.Queue[Any]]:
        """Let the run make a call, a stream with `on_end`; the queue gets what it answers.

        None ends it: the execution has ended. Raises CancelledError if it had ended before.
        """
        if id not in self._tasks:
            raise asyncio.CancelledError
        number, inbox = next(self._numbers), _Inbox(on_end)
        self._calls[number] = id, inbox
        self._messages.put_nowait(Called(id, number, request, on_end is not None))
        try:
            yield inbox.items
        finally:
            del self._calls[number]
            if not inbox.is_complete:
                self._messages.put_nowait(Closed(id, number))


class _Inbox:
    def __init__(self, on_end: Callable[[Completion], object] | None) -> None:
        self.items: asyncio.Queue[str | Completion | Exception | None] = asyncio.Queue()
        self.is_complete = False
        self._on_end = on_end

    def put(self, item: str | Completion | Exception) -> None:
        self.is_complete = not isinstance(item, str)
        if self._on_end is not None and isinstance(item, Completion):
            self._on_end(item)
        self.items.put_nowait(item)


class _Relay:
    """See Sender; sends the calls of one execution to the run."""

    failure: MetropolisError | None = None

    def __init__(self, host: ProceedHost, id: ExecutionId) -> None:
        self._host, self._id = host, id
        self.backend: Any = SimpleNamespace(name=host.spec.model)
        """Only its name is used."""
        self.models = host.spec.models

    async def call(self, request: Request) -> Completion:
        """See Sender."""
        with self._host.call(self._id, request, None) as items:
            answer: Completion = _checked(await items.get())
        return answer

    async def stream(
        self, request: Request, on_end: Callable[[Completion], object]
    ) -> AsyncGenerator[str | Completion, None]:
        """See Sender."""
        with self._host.call(self._id, request, on_end) as items:
            while True:
                item = _checked(await items.get())
                yield item
                if isinstance(item, Completion):
                    return


def _checked(item: Any) -> Any:
    """`item`, or what it raises."""
    if item is None:
        raise asyncio.CancelledError
    if isinstance(item, Exception):
        raise item
    return item
