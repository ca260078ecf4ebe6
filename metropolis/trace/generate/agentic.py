"""The agentic applications of Kairos (§2.1): its workflows, with estimated lengths.

The paper shows lengths only in figures without numbers, so the medians below are *estimates*. They
agree with its text: the router is terse, the math expert brief, the humanities expert long
(§2.1.3), and the math expert takes up to 25.1 times as long as the router (§1). It does not say
how long reports are: with short ones Kairos gains less over Ayo than in the paper, and theirs were
chosen so that it does not (docs/results/kairos.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from random import Random

from metropolis.trace.generate.arrivals import drifting_arrivals_s
from metropolis.trace.programs import PlannedCall, Program
from metropolis.types import MetropolisError

SPREAD = 0.35
"""Standard deviation of the logarithm of an answer's length."""
TOKENS_MAX = 2048

TESTER = "QA engineer"
# application -> function -> (tokens of its instructions, median tokens of its answer)
FUNCTIONS = {
    "QA": {"router": (180, 8), "math expert": (120, 200), "humanities expert": (120, 420)},
    "RG": {"researcher": (200, 800), "writer": (220, 1400)},
    "CG": {
        "product manager": (250, 300),
        "architect": (300, 420),
        "project manager": (280, 180),
        "engineer": (350, 480),
        TESTER: (320, 140),
    },
}
LENGTHS = {name: lengths for of in FUNCTIONS.values() for name, lengths in of.items()}
REPAIRS_SHARE, REPAIRS_MAX = 0.35, 4


Medians = Mapping[str, int]
"""Function -> median tokens of its answer, where it is not that of LENGTHS."""


class _Draft:
    """A program's calls while they are drawn; a prompt contains its parents' answers."""

    def __init__(self, draw: Random, medians: Medians, task_tokens: int) -> None:
        self.calls: list[PlannedCall] = []
        self._draw, self._medians, self._task_tokens = draw, medians, task_tokens

    def add(self, function: str, stages_left: int, *parents: int) -> int:
        """Add a call; returns its index."""
        instructions, median = LENGTHS[function]
        median = self._medians.get(function, median)
        read = sum(self.calls[parent].output_tokens for parent in parents)
        written = min(TOKENS_MAX, max(1, round(self._draw.lognormvariate(log(median), SPREAD))))
        prompt = instructions + self._task_tokens + read
        self.calls.append(PlannedCall(function, prompt, written, parents, stages_left))
        return len(self.calls) - 1


def question_answer(draw: Random, medians: Medians) -> list[PlannedCall]:
    """A router forwards a question to one of two experts (dynamic branching)."""
    draft = _Draft(draw, medians, draw.randint(40, 120))
    router = draft.add("router", 2)
    draft.add(draw.choice(["math expert", "humanities expert"]), 1, router)
    return draft.calls


def report_generate(draw: Random, medians: Medians) -> list[PlannedCall]:
    """A researcher, then a writer (sequential execution)."""
    draft = _Draft(draw, medians, draw.randint(20, 60))
    draft.add("writer", 1, draft.add("researcher", 2))
    return draft.calls


def code_generate(draw: Random, medians: Medians) -> list[PlannedCall]:
    """Five roles; code that fails the test returns to the engineer (dynamic feedback)."""
    draft = _Draft(draw, medians, draw.randint(80, 250))
    last = draft.add("product manager", 5)
    for left, role in ((4, "architect"), (3, "project manager"), (2, "engineer"), (1, TESTER)):
        last = draft.add(role, left, last)
    for _ in range(REPAIRS_MAX):
        if draw.random() >= REPAIRS_SHARE:
            break
        last = draft.add(TESTER, 1, draft.add("engineer", 2, last))
    return draft.calls


APPLICATIONS: dict[str, Callable[[Random, Medians], list[PlannedCall]]] = {
    "QA": question_answer,
    "RG": report_generate,
    "CG": code_generate,
}
CO_LOCATED = "co-located"


def workload(
    application: str, programs: int, per_s: float, seed: int, medians: Medians | None = None
) -> list[Program]:
    """Programs of one application, or of all three in equal shares; `per_s` programs a second.

    They arrive as in `drifting_arrivals_s`. Program i is the same at every rate. Raises
    MetropolisError on an unknown application.
    """
    kinds = list(APPLICATIONS) if application == CO_LOCATED else [application]
    if unknown := set(kinds) - set(APPLICATIONS):
        raise MetropolisError(
            f"there is no application {unknown.pop()!r}; there are {', '.join(APPLICATIONS)}"
        )
    found = []
    for number, arrival_s in enumerate(drifting_arrivals_s(programs, per_s, seed)):
        draw = Random(f"{seed} {application} {number}")
        kind = draw.choice(kinds)
        calls = tuple(APPLICATIONS[kind](draw, medians or {}))
        found.append(Program(f"{kind} {number}", arrival_s, calls))
    return found
