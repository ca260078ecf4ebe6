"""Turns: the code of agents and worlds while it runs, in whose name, and what it raises.

Whatever a turn raises is an error of its agent, also what would end the interpreter. Which turns
are open, and since when they have been silent, is what the watchdog looks at.
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

from metropolis.types import AgentError, MetropolisError, Step
from metropolis.workers.event_loop import complete
from metropolis.world.mistakes import alone, explain, explanation_of, sentence_of

T = TypeVar("T")


class Asking(Protocol):
    """What an agent asks its model with: a `metropolis.llm.agent.LLM`."""

    waiting: int
    """Calls that are not answered."""
    heard_wall_s: float
    """When the last one was."""


class Turn:
    """`code` of `owner`, a world or an agent, runs for the agents `names` at `step`."""

    __slots__ = (
        *("step", "names", "code", "owner", "llm", "turns", "task", "thread"),
        *("outer", "before", "inner", "heard_wall_s", "told_s", "_token"),
    )

    def __init__(
        self,
        turns: Turns,
        step: Step,
        names: Sequence[str],
        code: Callable[..., Any],
        owner: object,
        llm: Asking | None = None,
    ) -> None:
        self.step, self.names, self.code, self.owner, self.llm = step, names, code, owner, llm
        self.turns = turns
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        """Of a plain agent: the identifier of its thread."""
        self.outer: Turn | None = None
        """The one that has asked."""
        self.before: Turn | None = None
        """The one that its task goes on with after it."""
        self.inner = 0
        """Turns it waits for."""
        self.told_s = 0.0
        """For how long it was silent when the watchdog told of it."""

    def __str__(self) -> str:
        name = getattr(self.code, "__qualname__", "its code")
        others = f" and {len(self.names) - 1} of its cluster" if len(self.names) > 1 else ""
        return f"step {self.step}, agent {self.names[0]!r}{others}, in {name}"

    def __enter__(self) -> Turn:
        self.heard_wall_s = time.monotonic()
        self.task = asyncio.current_task()
        self.outer = _current.get()
        if self.outer is not None:
            self.outer.inner += 1
        self._token: Token[Turn | None] = _current.set(self)
        self.turns.begin(self)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.turns.end(self)
        if self.outer is not None:
            self.outer.inner -= 1
            self.outer.heard_wall_s = time.monotonic()
        if error is not None and not self._is_closed(error):
            _current.reset(self._token)
            self._raise(error)
        elif error is None:
            _current.reset(self._token)

    def silent_since_wall_s(self) -> float | None:
        """When it began, or had an answer last; None: it waits for one, or for another turn."""
        if self.inner:
            return None
        if self.llm is None:
            return self.heard_wall_s
        return None if self.llm.waiting else max(self.heard_wall_s, self.llm.heard_wall_s)

    def sentence(self, error: BaseException) -> str:
        """What `error`, raised in this turn, is."""
        return f"{self}: {sentence_of(error, self.owner)}"

    def _is_closed(self, error: BaseException) -> bool:
        """Whether the coroutine is only closed, maybe by the garbage collector, and elsewhere."""
        return isinstance(error, GeneratorExit) and _current_task() is not self.task

    def _raise(self, error: BaseException) -> None:
        """Say whose error it is, and raise what asyncio or the interpreter would end for."""
        if isinstance(error, asyncio.CancelledError):
            if self.task is not None and not self.task.cancelling():
                raise AgentError(
                    f"{self}: a task was cancelled from within; code that cancels a task should "
                    "catch its CancelledError"
                ) from error
            return
        if isinstance(error, KeyboardInterrupt) and is_ctrl_c():
            return
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            raise AgentError(self.sentence(error)) from error
        found = alone(error)
        if not isinstance(found, MetropolisError) or type(found) is MetropolisError:
            explain(found, self.sentence(found))  # other sentences name agent and step
        if found is not error:
            raise found from error


class Turns:
    """Those of one process's workers."""

    def __init__(self) -> None:
        self.open: dict[Turn, None] = {}
        self._of: dict[asyncio.Task[Any], Turn] = {}
        """Of each task the innermost turn."""

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()  # another process has its own

    def begin(self, turn: Turn) -> None:
        """Its code runs from now on."""
        self.open[turn] = None
        if turn.task is not None:
            turn.before = self._of.get(turn.task)
            self._of[turn.task] = turn

    def end(self, turn: Turn) -> None:
        """The reverse of `begin`."""
        self.open.pop(turn, None)
        if turn.task is not None:
            if turn.before is None:
                self._of.pop(turn.task, None)
            else:
                self._of[turn.task] = turn.before

    def follow_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Know of tasks that turns begin whose they are."""
        made = loop.get_task_factory()
        if not isinstance(made, _Factory):
            loop.set_task_factory(_Factory(self, made))

    def belongs(self, task: asyncio.Task[Any], turn: Turn) -> None:
        """`turn` has begun `task`."""
        self._of[task] = turn
        task.add_done_callback(self._forget)

    def of(self, task: asyncio.Task[Any] | None) -> Turn | None:
        """The turn that `task` is in."""
        return None if task is None else self._of.get(task)

    def complete(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` returns, run on `loop`; nothing there ends the interpreter."""
        try:
            return complete(loop, coroutine)
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and is_ctrl_c():
                raise
            raise self._error(error) from error
        except RuntimeError as error:  # as asyncio says that something has called loop.stop
            if f"{error}" != "Event loop stopped before Future completed." or explanation_of(error):
                raise
            raise AgentError(
                f"the event loop was stopped; agents should leave it running{self._under_way()}"
            ) from error

    def _error(self, error: BaseException) -> AgentError:
        for task, turn in self._of.items():  # its callbacks have not been called yet
            if task.done() and not task.cancelled() and task.exception() is error:
                return AgentError(turn.sentence(error))
        sentence = sentence_of(error, None)
        return AgentError(f"a callback of the event loop: {sentence}{self._under_way()}")

    def _under_way(self) -> str:
        """The turns whose code may have done it."""
        names = [f"{turn}" for turn in self.open]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f" (under way: {', '.join(names[:3])}{more})" if names else ""

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._of.pop(task, None)


class _Factory:
    """Makes tasks as before, and tells whose they are."""

    def __init__(self, turns: Turns, before: Any) -> None:
        self._turns, self._before = turns, before or _task

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._before(loop, coroutine, **options)
        if (turn := _current.get()) is not None:
            self._turns.belongs(task, turn)
        return task


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


_current: ContextVar[Turn | None] = ContextVar("turn", default=None)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


# --- Ctrl-C


class _CtrlC:
    """A handler of SIGINT that remembers it: agents can raise KeyboardInterrupt, too."""

    pressed = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.pressed = True
        raise KeyboardInterrupt


def is_ctrl_c() -> bool:
    """Whether a KeyboardInterrupt in the main thread may be the user's."""
    handler = signal.getsignal(signal.SIGINT)
    return handler is signal.default_int_handler or getattr(handler, "pressed", False)


@contextmanager
def noticing_ctrl_c() -> Iterator[None]:
    """Tell the user's Ctrl-C from what agents raise, where Python's own handler is in place."""
    handler, here = signal.getsignal(signal.SIGINT), threading.current_thread()
    if handler is not signal.default_int_handler or here is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _CtrlC())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
