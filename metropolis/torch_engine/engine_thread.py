"""Runs an engine in a thread of its own, for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from metropolis.torch_engine.engine import Engine
from metropolis.torch_engine.generation_request import EngineError, GenerationRequest, Output
from metropolis.types import MetropolisError


class EngineThread:
    """The thread ends with `close`; if it fails, every request gets an EngineError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """What the thread does before its next step; None ends it."""
        self._ended: EngineError | None = None
        """Why no command is carried out any more; guarded by the lock."""
        self._lock = Lock()
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        """Gets the exception as its result when the thread has failed."""
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        """Yield the outputs of a request; closing the iterator cancels it.

        Raises MetropolisError if it can never be served, and EngineError when it fails.
        """
        outputs: asyncio.Queue[Output | MetropolisError] = asyncio.Queue()

        def receive(output: Output | MetropolisError) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(outputs.put_nowait, output)

        sequence = await asyncio.to_thread(self._engine.prepare, request, receive)
        numbers: list[int] = []
        self._call(lambda: numbers.append(self._engine.submit(sequence)))
        is_open = True
        try:
            while is_open:
                output = await outputs.get()
                is_open = isinstance(output, Output) and output.finish is None
                if isinstance(output, MetropolisError):
                    raise output
                yield output
        finally:
            if is_open:
                with suppress(EngineError):  # the engine has ended, and all requests with it
                    self._call(lambda: self._engine.cancel(numbers[0]))

    def abort(self, prefix: str) -> None:
        """See Engine.abort."""
        self._call(lambda: self._engine.abort(prefix))

    def close(self) -> None:
        """End the thread after its current step, and all requests with a sentence."""
        self._commands.put(None)
        self._thread.join()

    def _call(self, command: Callable[[], None]) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._commands.put(command)

    def _run(self) -> None:
        error = EngineError("the engine is shutting down")
        try:
            while self._carry_out():
                self._engine.step()
        except Exception as fault:  # noqa: BLE001 -- reported to all clients and to the server
            error = EngineError(f"the engine failed: {type(fault).__name__}: {fault}")
            self._loop.call_soon_threadsafe(self.failed.set_result, fault)
        with self._lock:
            self._ended = error
        while not self._commands.empty():
            if (command := self._commands.get()) is not None:
                command()
        self._engine.fail(error)

    def _carry_out(self) -> bool:
        """Carry out the commands so far, waiting for one if the engine is idle; False: end."""
        while True:
            try:
                command = self._commands.get(block=self._engine.is_idle)
            except Empty:
                return True
            if command is None:
                return False
            command()
