"""One engine: a process that serves a copy of a model on its own GPUs, and a client of it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from metropolis.durable import open_regular, reported
from metropolis.llm.backends import wire
from metropolis.llm.backends.connection import AnswerLimits
from metropolis.llm.backends.http import JSONServer
from metropolis.llm.base import Completion, LLMError, Request, UnreachableError
from metropolis.plan.application import Node
from metropolis.plan.running.engine_command import EngineCommand, environment_of
from metropolis.process_group import ProcessGroup
from metropolis.types import MetropolisError

POLL_S = 0.05
STOP_S = 5.0
"""Time between asking a process to stop and killing it."""
PROBE_S = 10.0
"""Pause before a running engine is asked for its models again."""
RESPONSE_S = 5.0
"""Timeout of this probe; shorter than that of a check, whose end looks like a failing server."""
HANG_S = 120.0
"""An engine that has not responded for this time is considered hanging."""
KILL_S = 30.0
"""Longest wait for the end of a killed process, which a device may delay."""
LOG_BYTES = 4096
START = "--- "
"""Begins the line of the log with the command of a new process."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn: `seed` and a request determine the sampling seed."""

    seed: int = 0
    temperature: float = 1.0

    def seed_of(self, node: str, index: int) -> int:
        """The sampling seed of a request."""
        return Random(f"{self.seed}/{node}/{index}").getrandbits(31)


class NodeCall(Request):
    """A request of a node; `occurrence` is its index."""

    __slots__ = ()

    @property
    def where(self) -> str:
        """See Request."""
        return f"request {self.occurrence} of the node {self.function!r}"


def call_of(
    node: Node, index: int, prompt: str, context_tokens: int, sampling: Sampling
) -> NodeCall:
    """The call with that prompt; its answer ends at the node's `max_tokens` or the context."""
    return NodeCall(
        agent=0,
        step=0,
        function=node.name,
        messages=({"role": "user", "content": prompt},),
        max_tokens=node.max_tokens or context_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed_of(node.name, index),
        priority=0,
        program=node.name,
        occurrence=index,
    )


class Ports:
    """Free ports of 127.0.0.1. None is given twice: an engine takes a while until it listens, and
    requests must not reach another engine in its place."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def take(self) -> int:
        """A port on which no process listens."""
        while True:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port: int = free.getsockname()[1]
            if port not in self._given:
                self._given.add(port)
                return port


class Engine:
    """Starts a process; its output is appended to `log`. Raises MetropolisError if it cannot.

    Other users cannot read the log: its first line is the command, which may contain a key.
    """

    def __init__(
        self, command: EngineCommand, port: int, gpus: tuple[int, ...], log: Path, answer_s: float
    ) -> None:
        self._model, self._log = command.model, log
        arguments = command.arguments(port, gpus)
        with reported(log), open_regular(log, "ab") as output:
            output.write(f"{START}{shlex.join(arguments)}\n".encode())
            output.flush()
            try:
                self._group = ProcessGroup(arguments, environment_of(gpus), output)
            except OSError as error:
                raise MetropolisError(
                    f"{arguments[0]!r}, the command of engines of {command.model}, cannot be "
                    f"started: {error.strerror}; correct the engine command"
                ) from None
        limits = AnswerLimits(time_s=answer_s)
        self._server = JSONServer("the engine", f"http://127.0.0.1:{port}", None, limits)
        self.is_lost = asyncio.Event()
        """Set when its end is known, or that it hangs."""
        self._served = ""
        """The name under which the engine serves the model."""
        self._silent_s = 0.0
        """Time without a response, as far as it was probed."""

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; -N: ended by signal N."""
        return self._group.leader.poll()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._group.leader.pid

    async def is_ready(self, wait_s: float) -> bool:
        """Wait until the engine answers; False if its process has ended before.

        Raises MetropolisError after `wait_s`, or if it serves several models without this one.
        """
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while self.exit_code is None:
            models, why = list[str](), "it lists no model"
            try:
                models = await wire.models_of(self._server, "v1/models")
            except LLMError as error:
                why = f"{error}"
            if self._model in models or len(models) == 1:
                self._served = self._model if self._model in models else models[0]
                return True
            if models:
                raise MetropolisError(
                    f"an engine of {self._model} serves {', '.join(models)}; name one of them"
                )
            if asyncio.get_running_loop().time() > deadline_s:
                raise MetropolisError(
                    f"an engine of {self._model} did not answer within {wait_s:g} s ({why}); allow "
                    f"more with --wait-s; log: {self._log}: {self.last_line()}"
                )
            await asyncio.sleep(POLL_S)
        return False

    async def ended(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        while (code := self.exit_code) is None:
            await asyncio.sleep(POLL_S)
        return code

    async def hangs(self) -> None:
        """Wait until the engine does not respond, though its process runs."""
        time = asyncio.get_running_loop().time
        while self._silent_s < HANG_S:
            began_s = time()
            await asyncio.sleep(PROBE_S)
            try:
                async with asyncio.timeout(RESPONSE_S):
                    await wire.models_of(self._server, "v1/models")
            except (TimeoutError, UnreachableError):
                # limited: while this process is stopped, it does not ask
                self._silent_s += min(time() - began_s, PROBE_S + RESPONSE_S)
                continue
            except LLMError:  # a response of some kind
                pass
            self._silent_s = 0.0

    async def complete(self, call: NodeCall, max_tokens: int | None) -> Completion:
        """The answer; without `max_tokens` the engine chooses its longest. Raises LLMError."""
        body: dict[str, Any] = {
            "model": self._served,
            "messages": call.messages,
            "temperature": call.temperature,
            "seed": call.seed,
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        completion = await wire.complete(self._server, "v1/chat/completions", body, call)
        self._silent_s = 0.0
        return completion

    async def stop(self) -> None:
        """End the process: by request, after STOP_S by force."""
        try:
            for number, most_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
                self._group.signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(most_s):
                        await self.ended()
        finally:
            self._group.close()
            await self._server.close()

    def last_line(self) -> str:
        """The last line of the process's output."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return "no output" if not lines or lines[-1].startswith(START) else lines[-1]
