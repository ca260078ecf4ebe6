"""Invocations of the code of agents and worlds: the agents each belongs to, and its errors.

Any exception in an invocation is an error of its agent, even one that would end the interpreter.
The watchdog observes which invocations are open, and since when they have been silent.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from metropolis.llm.base import NotJSONError
from metropolis.types import AgentError, CausalityError, MetropolisError, Step
from metropolis.workers.event_loop import complete
from metropolis.world.user_errors import describe_error, explain, explanation_of, single_error

T = TypeVar("T")
CANCELLED_FROM_WITHIN = (
    "a task was cancelled from within; code that cancels a task should catch its CancelledError"
)


def cancelled_from_within(step: Step, name: str) -> MetropolisError:
    """The error of the agent `name` whose step was cancelled, and not by its worker."""
    return MetropolisError(f"step {step}, agent {name!r} or its cluster: {CANCELLED_FROM_WITHIN}")


class PendingCalls(Protocol):
    """An agent's interface to its model: a `metropolis.llm.agent.LLM`."""

    waiting: int
    """Number of pending calls."""
    active_wall_s: float
    """`time.monotonic` at the end of the latest call."""


_WITHOUT_LINE = MetropolisError, CausalityError, NotJSONError
"""Errors whose sentence does not name the line of the code that is wrong."""


class Invocation:
    """`code` of `owner`, a world or an agent, runs for the agents `names` at `step`."""

    __slots__ = (
        *("step", "names", "code", "owner", "llm", "invocations", "task", "thread"),
        *("outer", "before", "inner", "active_wall_s", "reported_s", "hint", "_token"),
    )

    def __init__(
        self,
        invocations: Invocations,
        step: Step,
        names: Sequence[str],
        code: Callable[..., Any],
        owner: object,
        llm: PendingCalls | None = None,
        hint: Callable[[], str] | None = None,
    ) -> None:
        """`hint` is added to the description of an error of the code."""
        self.hint = hint
        self.step, self.names, self.code, self.owner, self.llm = step, names, code, owner, llm
        self.invocations = invocations
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        """Thread identifier, for a plain agent."""
        self.outer: Invocation | None = None
        """The invocation that called this one."""
        self.before: Invocation | None = None
        """The invocation that its task resumes afterwards."""
        self.inner = 0
        """Number of invocations it waits for."""
        self.reported_s = 0.0
        """Seconds of silence at the watchdog's last report; 0: none."""

    def __str__(self) -> str:
        watched = getattr(self.owner, "watched", self.owner)
        code = getattr(watched, getattr(self.code, "__name__", ""), self.code)
        name = getattr(code, "__qualname__", "its code")
        others = f" and {len(self.names) - 1} of its cluster" if len(self.names) > 1 else ""
        return f"step {self.step}, agent {self.names[0]!r}{others}, in {name}"

    def __enter__(self) -> Invocation:
        self.active_wall_s = time.monotonic()
        self.task = asyncio.current_task()
        self.outer = _current.get()
        if self.outer is not None:
            self.outer.inner += 1
        self._token: Token[Invocation | None] = _current.set(self)
        self.invocations.enter(self)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.invocations.exit(self)
        if self.outer is not None:
            self.outer.inner -= 1
            self.outer.active_wall_s = time.monotonic()
        if error is not None and not self._is_closed(error):
            _current.reset(self._token)
            self._raise(error)
        elif error is None:
            _current.reset(self._token)

    def switch(self, names: Sequence[str], code: Callable[..., Any], owner: object) -> None:
        """Continue with other code, for other agents."""
        self.names, self.code, self.owner = names, code, owner
        self.active_wall_s = time.monotonic()

    def silent_since_wall_s(self) -> float | None:
        """Time of its start or last answer; None: it waits for an answer or an inner invocation."""
        if self.inner:
            return None
        if self.llm is None:
            return self.active_wall_s
        return None if self.llm.waiting else max(self.active_wall_s, self.llm.active_wall_s)

    def sentence(self, error: BaseException) -> str:
        """A description of `error`, raised in this invocation."""
        described = describe_error(error, self.owner)
        if isinstance(error, MetropolisError) and f"{error}".startswith("step "):
            return described  # the sentence of this error names agent and step
        return f"{self}: {described}{'' if self.hint is None else self.hint()}"

    def _is_closed(self, error: BaseException) -> bool:
        """Whether the coroutine was merely closed, e.g. by garbage collection, in another task."""
        return isinstance(error, GeneratorExit) and _current_task() is not self.task

    def _raise(self, error: BaseException) -> None:
        """Note the invocation on `error`; wrap errors that would end asyncio or the interpreter."""
        if isinstance(error, asyncio.CancelledError):
            if self.task is None or not self.task.cancelling():
                raise AgentError(f"{self}: {CANCELLED_FROM_WITHIN}") from error
            return
        if isinstance(error, KeyboardInterrupt) and is_ctrl_c():
            return
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            raise AgentError(self.sentence(error)) from error
        found = single_error(error)
        if not isinstance(found, MetropolisError) or type(found) in _WITHOUT_LINE:
            explain(found, self.sentence(found))
        if found is not error:
            raise found from error


class Invocations:
    """The invocations of the workers of one process."""

    def __init__(self) -> None:
        self.open: dict[Invocation, None] = {}
        self._of: dict[asyncio.Task[Any], Invocation] = {}
        """The innermost invocation of each task."""
        self.end: BaseException | None = None
        """Why the run has ended: steps that are still under way do not count."""

    def __reduce__(self) -> tuple[type[Invocations], tuple[()]]:
        return Invocations, ()  # another process has separate invocations

    def enter(self, invocation: Invocation) -> None:
        """Open `invocation`: its code runs now."""
        self.open[invocation] = None
        if invocation.task is not None:
            invocation.before = self._of.get(invocation.task)
            self._of[invocation.task] = invocation

    def exit(self, invocation: Invocation) -> None:
        """The reverse of `enter`."""
        self.open.pop(invocation, None)
        if invocation.task is not None:
            if invocation.before is None:
                self._of.pop(invocation.task, None)
            else:
                self._of[invocation.task] = invocation.before

    def assign(self, task: asyncio.Task[Any], invocation: Invocation) -> None:
        """Note that `invocation` created `task`."""
        self._of[task] = invocation
        # Not the task's own method, which records that the creator waits for the task.
        asyncio.Task.add_done_callback(task, self._forget)

    def of_task(self, task: asyncio.Task[Any] | None) -> Invocation | None:
        """The invocation that `task` is in."""
        return None if task is None else self._of.get(task)

    def complete(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of `coroutine`, run on `loop`; it cannot end the interpreter."""
        try:
            return complete(loop, coroutine)
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and is_ctrl_c():
                raise
            raise self._error(error) from error
        except RuntimeError as error:  # asyncio's error after loop.stop
            if f"{error}" != "Event loop stopped before Future completed." or explanation_of(error):
                raise
            raise AgentError(
                f"the event loop was stopped; agents should leave it running{self._under_way()}"
            ) from error

    def _error(self, error: BaseException) -> AgentError:
        for task, invocation in self._of.items():  # the task's done callbacks have not run yet
            if task.done() and not task.cancelled() and task.exception() is error:
                return AgentError(invocation.sentence(error))
        sentence = describe_error(error, None)
        return AgentError(f"a callback of the event loop: {sentence}{self._under_way()}")

    def _under_way(self) -> str:
        """A list of the open invocations, any of which may be the cause."""
        names = [f"{invocation}" for invocation in self.open]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f" (under way: {', '.join(names[:3])}{more})" if names else ""

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._of.pop(task, None)


def assign_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Assign tasks of `loop` that an invocation creates to it; an existing task factory is kept."""
    before = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(_Factory(before))


class _Factory:
    """A task factory that records the invocation each task belongs to."""

    def __init__(self, before: Any) -> None:
        self._before = before or _task

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._before(loop, coroutine, **options)
        if (invocation := _current.get()) is not None:
            invocation.invocations.assign(task, invocation)
        return task


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


_current: ContextVar[Invocation | None] = ContextVar("invocation", default=None)


def runs_user_code() -> bool:
    """Whether code of an agent or a world is running."""
    return _current.get() is not None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


# --- Ctrl-C


class CtrlC:
    """A SIGINT handler that records the signal, since agents can raise KeyboardInterrupt, too.

    The first Ctrl-C is raised by the loop of the run, by code that reads the run, or after the run:
    elsewhere it could lose a task, or leave files, threads and processes behind. The next is raised
    at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_press: Callable[[], object]) -> None:
        """`on_press` is called at a Ctrl-C that is raised later."""
        self._loop, self._on_press = loop, on_press
        self.pressed = self.waits = self._is_read = self._tidies = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """Handle the signal."""
        self.pressed = True
        if self.waits or self._is_read:
            self.waits = False
            raise KeyboardInterrupt
        self.waits = True
        self._on_press()
        if not self._tidies:
            self._loop.call_soon_threadsafe(self._raise)

    @contextmanager
    def read(self) -> Iterator[None]:
        """The block is code that reads the run."""
        self._is_read = True
        try:
            yield
        finally:
            self._is_read = False

    def tidy(self) -> None:
        """The run has ended, and is tidied up from now on."""
        self._tidies = True

    def _raise(self) -> None:
        if self.waits and not self._tidies:
            self.waits = False
            raise KeyboardInterrupt


def is_ctrl_c() -> bool:
    """Whether a KeyboardInterrupt in this thread may be the user's.

    A worker on Ray runs beside the main thread, and would hang.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or getattr(handler, "pressed", False)


@contextmanager
def recording_ctrl_c(
    loop: asyncio.AbstractEventLoop, on_press: Callable[[], object]
) -> Iterator[CtrlC]:
    """Distinguish the user's Ctrl-C from agents' exceptions, if Python's own handler is set."""
    handler = CtrlC(loop, on_press)
    try:
        with _handling_ctrl_c(handler):
            yield handler
    finally:
        if handler.waits:
            raise KeyboardInterrupt


@contextmanager
def ended_by_first_ctrl_c(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` at the first Ctrl-C, if Python's own handler is set; a second one raises.

    An exception at any moment could leave the event loop in a state in which nothing ends.
    """

    def first(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end()

    with _handling_ctrl_c(first):
        yield


@contextmanager
def _handling_ctrl_c(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before, here = signal.getsignal(signal.SIGINT), threading.current_thread()
    if before is not signal.default_int_handler or here is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
