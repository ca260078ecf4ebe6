"""Values with the step and the result that wrote them, by brute force: no index of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metropolis.rules.metrics import Metric
from metropolis.speculation.base import Answer, Emitted, ExecutionId, Question, Value
from metropolis.types import Step


@dataclass(eq=False)
class Result:
    """What a resolution wrote at the end of a step."""

    id: ExecutionId
    step: Step
    writes: Mapping[str, Value | None]
    events: Sequence[Emitted]
    final: bool = False


class Versions:
    """The results of resolutions, final ones and predictions."""

    def __init__(self, metric: Metric, entities: Mapping[str, Value]) -> None:
        """`entities` exist at step 0."""
        self._metric = metric
        self._results = [Result(0, -1, dict(entities), (), final=True)]
        self._answers: dict[tuple[Question, Step, bool], Answer] = {}
        """The answers given since the last change."""

    def put(self, result: Result) -> None:
        """Add a result; no other of its step may write one of its entities."""
        self._results.append(result)
        self._answers.clear()

    def drop(self, result: Result) -> None:
        """Remove a result."""
        self._results.remove(result)
        self._answers.clear()

    def finalise(self, result: Result) -> None:
        """Make a result final."""
        result.final = True
        self._answers.clear()

    def is_final(self, names: Iterable[str], step: Step) -> bool:
        """Whether a final result of `step` has written one of `names`."""
        final = [one.writes for one in self._results if one.final and one.step == step]
        return any(name in writes for writes in final for name in names)

    def value(self, name: str, step: Step, *, final: bool) -> Value | None:
        """The newest value of `name` that `step` sees; `final`: among final versions only."""
        answer = self.answer(Question("entity", name), step, final=final)
        assert answer is None or isinstance(answer, Value)
        return answer

    def answer(self, question: Question, step: Step, *, final: bool) -> Answer:
        """The answer that an execution of `step` gets now."""
        key = question, step, final
        if key not in self._answers:
            self._answers[key] = self._answer(*key)
        return self._answers[key]

    def collect(self, floor: Step) -> None:
        """Drop what only steps below `floor` can read."""
        old = [each for each in self._results if each.final and each.step < floor]
        newest: dict[str, Step] = {}
        for each in sorted(old, key=lambda each: each.step):
            newest |= dict.fromkeys(each.writes, each.step)
        for each in old:
            each.writes = {n: v for n, v in each.writes.items() if newest[n] == each.step}
        self._results = [one for one in self._results if one.writes or one.step >= floor - 1]

    def writers(self) -> Iterable[tuple[str, Step]]:
        """The (entity, step) of every version."""
        return [(name, each.step) for each in self._results for name in each.writes]

    def _answer(self, question: Question, step: Step, final: bool) -> Answer:
        visible = [one for one in self._results if one.step < step and (one.final or not final)]
        if question.kind == "events":
            emitted = [event for one in visible if one.step == step - 1 for event in one.events]
            near = [event for event in emitted if self._perceives(question, event)]
            return tuple(sorted(near, key=lambda event: event.source))
        values: dict[str, Value | None] = {}
        for one in sorted(visible, key=lambda one: one.step):
            values |= one.writes
        if question.kind == "entity":
            return values.get(question.name)
        return tuple(
            (name, value)
            for name, value in sorted(values.items())
            if value is not None and self._perceives(question, value)
        )

    def _perceives(self, question: Question, there: Value | Emitted) -> bool:
        return self._metric.perceives(question.centre, there.position, question.radius)
