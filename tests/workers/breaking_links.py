"""Links to hosts in this process, which delay what they carry and break."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metropolis.workers.optimistic.decisions import Decisions, WorkerLostError
from metropolis.workers.optimistic.remote_decisions import RemoteDecisions
from metropolis.workers.optimistic.remote_host import HostSpec, ProceedHost
from metropolis.workers.optimistic.remote_messages import Command, Decided, Message

WORKERS = 2


class Link:
    """A link to a host in this process; what it carries is pickled, late and in any order.

    With probability `loss` the worker is lost instead of sending its messages; if that is below 1,
    not before a first decision.
    """

    def __init__(self, spec: HostSpec, draw: Random, loss: float) -> None:
        copied: HostSpec = deepcopy(spec)
        self.host = ProceedHost(copied, pickle.dumps, pickle.loads)
        self._draw, self._loss = draw, loss
        self._is_lost = self._has_decided = False

    def send(self, batch: int, commands: Sequence[Command]) -> None:
        carried = pickle.dumps((batch, commands))
        asyncio.get_running_loop().call_later(0.002 * self._draw.random(), self._deliver, carried)

    def _deliver(self, carried: bytes) -> None:
        if not self._is_lost:
            self.host.receive(*pickle.loads(carried))

    async def receive(self) -> Sequence[Message]:
        messages = await self.host.messages()
        may_be_lost = self._has_decided or self._loss == 1
        self._has_decided |= any(isinstance(message, Decided) for message in messages)
        if may_be_lost and self._draw.random() < self._loss:
            self.close()
            raise WorkerLostError("it was lost")
        received: Sequence[Message] = pickle.loads(pickle.dumps(messages))
        return received

    def close(self) -> None:
        self._is_lost = True
        for task in self.host.tasks:
            task.cancel()


@dataclass
class Chaos:
    seed: int = 0
    loss: float = 0.0
    made: list[Link] = field(default_factory=list)
    """The links."""

    @property
    def links(self) -> int:
        return len(self.made)

    def decisions(
        self, _workers: Any, _address: Any, spec: Any, local: Any, minds: Any
    ) -> Decisions:
        host = HostSpec.of(spec, local)
        draw = Random(self.seed)

        def connect() -> Link:
            self.made.append(Link(host, draw, self.loss))
            return self.made[-1]

        return RemoteDecisions(connect, WORKERS, minds, pickle.dumps, pickle.loads)
