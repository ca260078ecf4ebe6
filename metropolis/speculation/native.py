"""Speculation in C++; it returns the same commands as `reference.py`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import metropolis._core as _core
from metropolis.controller.core_errors import input_checked, invariants_checked
from metropolis.rules.metrics import Metric
from metropolis.rules.native import core_metric
from metropolis.speculation.base import (
    Abort,
    Answer,
    Command,
    CommitResult,
    Digest,
    Drop,
    Emitted,
    Event,
    Lost,
    Observed,
    Predict,
    Proceed,
    Proceeded,
    Promote,
    Reads,
    Resolve,
    Resolved,
    Value,
)
from metropolis.types import AgentId, Step

_KINDS = {"entity": 0, "entities": 1, "events": 2}
"""The numbers of `Question::Kind` in the core."""
_ABORT, _DROP, _COMMIT, _PROMOTE, _RESOLVE, _PROCEED, _PREDICT = range(7)
"""The numbers of `SpeculationCommand::Kind` in the core."""
Named = TypeVar("Named", bound=Hashable)
_Sighting = tuple[int, float, float, int]


class _Numbers(Generic[Named]):
    """A number for each name; unused numbers are reused."""

    def __init__(self, numbers_kept: int = 10_000) -> None:
        self._numbers: dict[Named, int] = {}
        self._free: list[int] = []
        self._next, self._kept, self._full = 0, numbers_kept, numbers_kept

    def __getitem__(self, name: Named) -> int:
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
            else:
                number, self._next = self._next, self._next + 1
            self._numbers[name] = number
        return number

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def is_full(self) -> bool:
        """Whether it is time to search for unused numbers."""
        return len(self._numbers) > self._full

    def keep(self, in_use: Iterable[int]) -> None:
        """Forget the names of all other numbers."""
        used = set(in_use)
        self._numbers = {name: one for name, one in self._numbers.items() if one in used}
        self._free = [one for one in range(self._next) if one not in used]
        self._full = max(self._kept, 2 * len(self._numbers))


class NativeSpeculation:
    """See `metropolis.speculation.base.Speculation`; drives a C++ object from Python."""

    def __init__(
        self,
        controller: _core.Controller,
        metric: Metric,
        cluster_radius: float,
        bodies: Sequence[str],
        entities: Mapping[str, Value],
        minds: Sequence[Digest],
        target_step: Step,
        *,
        perception_radius: float,
        numbers_kept: int = 10_000,
    ) -> None:
        """Parameters as of `ReferenceSpeculation`; `controller` has no other user.

        `perception_radius`: the usual radius of questions. `numbers_kept`: the number of entities
        or digests beyond which those that are not in use are forgotten.
        """
        self._names = _Numbers[str](numbers_kept)
        self._digests = _Numbers[Digest](numbers_kept)
        self._target = target_step
        sightings = [self._sighting(name, value) for name, value in entities.items()]
        with input_checked():
            self._core = _core.Speculation(
                controller=controller,
                metric=core_metric(metric),
                perception_radius=perception_radius,
                cluster_radius=cluster_radius,
                target_step=target_step,
                bodies=[self._names[name] for name in bodies],
                entities=sightings,
                minds=[self._digests[mind] for mind in minds],
            )

    def start(self) -> list[Command]:
        """See `Speculation.start`."""
        with input_checked():
            return [_command(*one) for one in self._core.start()]

    def handle(self, events: Sequence[Event]) -> list[Command]:
        """See `Speculation.handle`."""
        with input_checked():
            for event in events:
                self._apply(event)
            commands = [_command(*one) for one in self._core.settle()]
        if self._names.is_full or self._digests.is_full:
            self._forget()
        return commands

    def candidates(self) -> list[AgentId]:
        """See `Speculation.candidates`."""
        return self._core.candidates()

    def next_step(self, agent: AgentId) -> Step:
        """See `Speculation.next_step`."""
        return self._core.next_step(agent)

    def speculate(self, agents: Sequence[AgentId]) -> list[Command]:
        """See `Speculation.speculate`."""
        with input_checked():
            return [_command(*one) for one in self._core.speculate(agents)]

    @property
    def floor(self) -> Step:
        """See `Speculation.floor`."""
        return self._core.floor

    @property
    def finished(self) -> bool:
        """See `Speculation.finished`."""
        return self.floor == self._target

    def validate(self) -> None:
        """See `Speculation.validate`."""
        with invariants_checked():
            self._core.validate()

    def _forget(self) -> None:
        entities, digests = self._core.in_use()
        self._names.keep(entities)
        self._digests.keep(digests)

    def _apply(self, event: Event) -> None:
        core = self._core
        if isinstance(event, Observed):
            core.observed(event.id, self._reads(event.reads))
        elif isinstance(event, Proceeded):
            core.proceeded(event.id)
        elif isinstance(event, Resolved):
            core.resolved(
                event.id,
                self._reads(event.reads),
                [
                    (
                        self._names[name],
                        value and (*value.position, self._digests[value.digest]),
                    )
                    for name, value in event.writes.items()
                ],
                [self._sighting(one.source, one) for one in event.events],
                [(agent, self._digests[mind]) for agent, mind in sorted(event.minds.items())],
                [
                    (agent, [(*body.position, self._digests[body.digest]) for body in bodies])
                    for agent, bodies in sorted(event.forecasts.items())
                ],
            )
        elif isinstance(event, Lost):
            core.lost(event.id)
        else:
            core.failed(event.id)

    def _reads(self, reads: Reads) -> list[Any]:
        return [
            (
                _KINDS[question.kind],
                self._names[question.name] if question.kind == "entity" else -1,
                *question.centre,
                question.radius,
                self._answer(question.name, answer),
            )
            for question, answer in reads
        ]

    def _answer(self, name: str, answer: Answer) -> list[_Sighting]:
        if answer is None:
            return []
        if isinstance(answer, Value):
            return [self._sighting(name, answer)]
        sightings = [
            self._sighting(one.source, one) if isinstance(one, Emitted) else self._sighting(*one)
            for one in answer
        ]
        return sorted(sightings, key=lambda sighting: sighting[0])

    def _sighting(self, name: str, seen: Value | Emitted) -> _Sighting:
        return (self._names[name], *seen.position, self._digests[seen.digest])


_WITHOUT_MORE: Mapping[int, type[Abort | Drop | Promote]] = {
    _ABORT: Abort,
    _DROP: Drop,
    _PROMOTE: Promote,
}
"""Kind -> the command that has an id only."""


def _command(
    kind: int,
    id: int,
    step: Step,
    agents: tuple[AgentId, ...],
    proceeds: tuple[int, ...],
    mind: int,
    sure: bool,
) -> Command:
    if kind == _PROCEED:
        return Proceed(id, step, agents[0], mind or None, sure)
    if kind == _PREDICT:
        return Predict(id, step, agents[0], mind)
    if kind == _RESOLVE:
        return Resolve(id, step, agents, proceeds, sure)
    if kind == _COMMIT:
        return CommitResult(id, step, agents)
    return _WITHOUT_MORE[kind](id)
