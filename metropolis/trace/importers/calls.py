"""LLM calls from logs: one JSON object per line, or CSV with a header; plain or gzipped.

Fields may have other names, see `ALIASES`. Missing token counts are estimated from a text or its
number of characters (4 per token), otherwise from typical lengths of GenAgent's functions.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from metropolis.names import cut
from metropolis.trace.importers.log_lines import log_lines
from metropolis.trace.schema import Calls, Trace
from metropolis.trace.validate import validate
from metropolis.types import MetropolisError

CHARS_PER_TOKEN = 4
ALIASES = {
    "step": ("step",),
    "agent": ("agent",),
    "seq": ("seq", "index"),
    "function": ("function", "kind"),
    "parents": ("parents",),
    "other_parents": ("other_parents",),
    "attempts": ("attempts",),
    "model": ("model",),
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "prompt_chars": ("prompt_chars", "in_chars"),
    "output_chars": ("output_chars", "out_chars", "response_chars"),
    "prefix_id": ("prefix_id",),
    "prefix_tokens": ("prefix_tokens",),
    "prompt": ("prompt", "input"),
    "completion": ("completion", "response", "output"),
}
"""Field -> its names in logs. Other fields are ignored, except those whose names resemble these."""
NAMES = tuple(name for names in ALIASES.values() for name in names)
UNNAMED_FUNCTION = "call"
_WHOLE = re.compile(r"(-?[0-9]{1,19})(\.0*)?")


@dataclass(slots=True)
class _Entry:
    """One line of a log; the call was sent `attempts` times in sequence."""

    place: str
    step: int
    agent: int
    seq: int
    function: str
    model: str
    prompt_tokens: int
    output_tokens: int
    prefix_id: int
    prefix_tokens: int
    attempts: int
    parents: list[int] | None
    other_parents: list[tuple[int, int]]
    """Agents and the numbers of their calls in this step."""
    prompt: str | None
    completion: str | None


def import_calls(path: str | Path, trace: Trace) -> Trace:
    """`trace` with the calls logged at `path`, sorted by step, agent and seq (without seq: line).

    `parents` in the log number the calls of the same agent-step from 0 in that order. The origin of
    the calls is `derived` if a length came from the table of typical ones, otherwise `recorded`.
    Raises `MetropolisError` naming file, line and field.
    """
    path = Path(path)
    log = _Log({name: i for i, name in enumerate(trace.meta.agents)}, trace.steps)
    entries = sorted(
        (log.entry(fields, place) for place, fields in log_lines(path, NAMES)),
        key=lambda entry: (entry.step, entry.agent, entry.seq),
    )
    origin = "derived" if log.estimated else "recorded"
    imported = replace(
        trace, meta=replace(trace.meta, calls_origin=origin), calls=_columns(entries)
    )
    validate(imported, path)
    return imported


class _Log:
    """Parses lines; records whether a length was taken from the table of typical ones."""

    def __init__(self, agents: dict[str, int], steps: int) -> None:
        self.agents = agents
        self.has_numbers = any(_whole(name) is not None for name in agents)
        """Whether a name is a number; then no number is an index."""
        self.steps = steps
        self.estimated = False

    def entry(self, fields: dict[str, Any], place: str) -> _Entry:
        for field in ("step", "agent"):
            if fields.get(field) is None:
                raise MetropolisError(f"{place}: {field} is missing; every call should have one")
        step = _integer(fields, "step", place, -1)
        if not 0 <= step < self.steps:
            raise MetropolisError(
                f"{place}: step is {cut(fields.get('step'))}; it should be 0 to {self.steps - 1},"
                " a step of the movement"
            )
        function = _text(fields, "function", place) or UNNAMED_FUNCTION
        attempts = _integer(fields, "attempts", place, 1)
        if not 1 <= attempts <= 1000:
            raise MetropolisError(f"{place}: attempts is {attempts}; it should be 1 to 1000")
        given = _value(fields, "parents", place)
        parents = [_whole(p) for p in given.split()] if isinstance(given, str) else given
        if parents is not None and not (
            isinstance(parents, list) and all(type(parent) is int for parent in parents)
        ):
            raise MetropolisError(
                f"{place}: parents is {cut(given)}; it should be a list of call numbers"
            )
        prompt, completion = (_text(fields, name, place) for name in ("prompt", "completion"))
        prompt_tokens = self._tokens(fields, "prompt", prompt, function, place)
        prefix_tokens = _integer(fields, "prefix_tokens", place, 0)
        if not 0 <= prefix_tokens <= prompt_tokens:
            raise MetropolisError(
                f"{place}: prefix_tokens is {prefix_tokens};"
                f" it should be 0 to {prompt_tokens}, the prompt's"
            )
        return _Entry(
            place=place,
            step=step,
            agent=self._agent(fields, place),
            seq=_integer(fields, "seq", place, 0),
            function=function,
            model=_text(fields, "model", place) or "",
            prompt_tokens=prompt_tokens,
            output_tokens=self._tokens(fields, "output", completion, function, place),
            prefix_id=_size(fields, "prefix_id", place),
            prefix_tokens=prefix_tokens,
            attempts=attempts,
            parents=parents,
            other_parents=self._other_parents(fields, place),
            prompt=prompt,
            completion=completion,
        )

    def _other_parents(self, fields: dict[str, Any], place: str) -> list[tuple[int, int]]:
        given = _value(fields, "other_parents", place)
        pairs = [] if given is None else given
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int for pair in pairs
        ):
            raise MetropolisError(
                f"{place}: other_parents is {cut(given)};"
                " it should be a list of pairs of an agent and a call number"
            )
        return [(self._agent({"agent": agent}, place), number) for agent, number in pairs]

    def _agent(self, fields: dict[str, Any], place: str) -> int:
        agent = fields.get("agent")
        index = _whole(agent)
        for name in (agent, index):
            if isinstance(name, str | int) and f"{name}" in self.agents:
                return self.agents[f"{name}"]
        if index is None or self.has_numbers or not 0 <= index < len(self.agents):
            right = "" if self.has_numbers else f", or 0 to {len(self.agents) - 1}"
            raise MetropolisError(
                f"{place}: agent is {cut(agent)}; it should be a name in the movement{right}"
            )
        return index

    def _tokens(
        self, fields: dict[str, Any], side: str, text: str | None, function: str, place: str
    ) -> int:
        field = f"{side}_tokens"
        if _value(fields, field, place) is not None:
            tokens = _integer(fields, field, place, 0)
            if tokens < 1:
                raise MetropolisError(f"{place}: {field} is {tokens}; it should be at least 1")
            return tokens
        chars = _size(fields, f"{side}_chars", place)
        if chars < 0 and text is not None:
            chars = len(text)
        if chars >= 0:
            return max(1, -(-chars // CHARS_PER_TOKEN))
        self.estimated = True
        if function not in typical_tokens():
            raise MetropolisError(
                f"{place}: {field} is missing, and no typical length is known for the function"
                f" {cut(function)}; it should have {field}, {side}_chars or the text itself"
            )
        prompt_tokens, output_tokens = typical_tokens()[function]
        return prompt_tokens if side == "prompt" else output_tokens


@cache
def typical_tokens() -> dict[str, tuple[int, int]]:
    """Typical prompt and output tokens of GenAgent's functions, from its templates and memories."""
    text = files("metropolis.trace.importers").joinpath("typical_tokens.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["function"]: (int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rows}


def _value(fields: dict[str, Any], field: str, place: str) -> Any:
    """The field's value under any of its names, or None. Raises MetropolisError if two differ."""
    named = {name: fields[name] for name in ALIASES[field] if fields.get(name) is not None}
    (first, value), *others = named.items() or [(field, None)]
    for name, other in others:
        if other != value:
            raise MetropolisError(
                f"{place}: {first} is {cut(value)} and {name} is {cut(other)}; both name the "
                "same field"
            )
    return value


def _whole(value: Any) -> int | None:
    """Parse a whole number from JSON or CSV; None if `value` is none, or has 20 digits in CSV."""
    if isinstance(value, str):
        found = _WHOLE.fullmatch(value.strip())
        return int(found[1]) if found else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _integer(fields: dict[str, Any], field: str, place: str, default: int) -> int:
    value = _value(fields, field, place)
    if value is None:
        return default
    number = _whole(value)
    most = 2**63 if field == "prefix_id" else 2**31
    if number is None or abs(number) >= most:
        raise MetropolisError(
            f"{place}: {field} is {cut(value)}; it should be a whole number below {most:,}"
        )
    return number


def _size(fields: dict[str, Any], field: str, place: str) -> int:
    """A whole number that is at least 0; -1 if it is not given."""
    number = _integer(fields, field, place, -1)
    if number < 0 and _value(fields, field, place) is not None:
        raise MetropolisError(f"{place}: {field} is {number}; it should be at least 0")
    return number


def _text(fields: dict[str, Any], field: str, place: str) -> str | None:
    value = _value(fields, field, place)
    if value is not None and not isinstance(value, str):
        raise MetropolisError(f"{place}: {field} is {cut(value)}; it should be a text")
    return value


def _parents(entries: Sequence[_Entry]) -> list[list[int]]:
    """The parents of every attempt; each attempt waits for the previous one of its entry."""
    parents: list[list[int]] = []
    last_of: dict[tuple[int, int], list[int]] = {}  # agent-step -> last attempt of each entry
    waiting: list[tuple[list[int], _Entry]] = []
    for entry in entries:
        last = last_of.setdefault((entry.step, entry.agent), [])
        if entry.parents is None:
            parents.append(last[-1:])
        else:
            for parent in entry.parents:
                if not 0 <= parent < len(last):
                    right = f"0 to {len(last) - 1}" if last else "none for the first call"
                    raise MetropolisError(
                        f"{entry.place}: parents has {parent}; it should number earlier calls of"
                        f" this step and agent, here {right}"
                    )
            parents.append([last[parent] for parent in entry.parents])
        if entry.other_parents:
            waiting.append((parents[-1], entry))
        first = len(parents) - 1
        parents.extend([first + i] for i in range(entry.attempts - 1))
        last.append(len(parents) - 1)
    for found, entry in waiting:
        for agent, number in entry.other_parents:
            calls = last_of.get((entry.step, agent), [])
            if agent == entry.agent or not 0 <= number < len(calls):
                raise MetropolisError(
                    f"{entry.place}: other_parents has call {number} of agent {agent};"
                    " it should number calls of other agents in this step"
                )
            found.append(calls[number])
        found.sort()
    return parents


def _columns(entries: Sequence[_Entry]) -> Calls:
    """The entries as columns; each attempt is a call."""
    parents = _parents(entries)
    repeat = np.array([entry.attempts for entry in entries], np.int64)

    def numbers(field: str, dtype: type) -> Any:
        return np.repeat(np.array([getattr(entry, field) for entry in entries], dtype), repeat)

    def named(field: str) -> tuple[Any, tuple[str, ...]]:
        values = [getattr(entry, field) for entry in entries]
        names = tuple(dict.fromkeys(values))
        rank = {name: i for i, name in enumerate(names)}
        return np.repeat(np.array([rank[value] for value in values], np.int32), repeat), names

    def texts(field: str) -> list[str | None] | None:
        values = [getattr(entry, field) for entry in entries for _ in range(entry.attempts)]
        return values if any(value is not None for value in values) else None

    function, functions = named("function")
    model, models = named("model")
    return Calls(
        step=numbers("step", np.int32),
        agent=numbers("agent", np.int32),
        function=function,
        functions=functions,
        model=model,
        models=models,
        prompt_tokens=numbers("prompt_tokens", np.int32),
        output_tokens=numbers("output_tokens", np.int32),
        prefix_id=numbers("prefix_id", np.int64),
        prefix_tokens=numbers("prefix_tokens", np.int32),
        parent_offsets=np.cumsum([0, *(len(p) for p in parents)]).astype(np.int64),
        parents=np.array([p for own in parents for p in own], np.int64),
        prompt=texts("prompt"),
        completion=texts("completion"),
    )
