"""Applications in which functions have models of their own and pass on one growing history.

A prompt is all that came before (the task, and the instructions and the answer of each earlier
call) and then the instructions of its function. This is the communication of DroidSpeak (§3.3,
§3.4, Fig. 3): a receiver prefills the history and output of the sender. The sender is the
foundation model `base`; `chat` and `expert` are fine-tuned variants of it.

The workflows of `QA`, `RG` and `CG`, and their lengths, are those of Kairos (`agentic.py`), whose
prompts hold only the answers of their parents. `MetaGPT` (§3.3, Fig. 1a), `MapCoder` and
`Reflexion` (§3.4) are DroidSpeak's. It prints one length: the answer of an agent of MapCoder has up
to 38,000 tokens. `documents` has that of §3.3: the prefill of HotpotQA takes Llama-3-70B 2.16 s and
the answer 0.21 s, which are 10,400 and 5 tokens on our profile of four A100s. All other lengths,
and which function has which model, are *estimates*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from math import log
from random import Random

from metropolis.trace.generate.agentic import LENGTHS, REPAIRS_MAX, REPAIRS_SHARE, TESTER
from metropolis.trace.programs import PlannedCall, Program, Text
from metropolis.types import MetropolisError

BASE, CHAT, EXPERT = "base", "chat", "expert"
MODELS: Mapping[str, str] = {
    "router": BASE, "math expert": EXPERT, "humanities expert": CHAT,
    "researcher": BASE, "writer": CHAT,
    "product manager": BASE, "architect": CHAT, "project manager": BASE, "engineer": EXPERT,
    TESTER: CHAT,
    "retrieval": BASE, "planning": CHAT, "coding": EXPERT, "debugging": EXPERT,
    "actor": BASE, "evaluator": CHAT, "self-reflection": EXPERT,
    "reader": BASE, "answerer": CHAT,
}  # fmt: skip
"""Function -> model."""

SPREAD = 0.5
"""Standard deviation of the logarithm of lengths."""
TEXTS_PER_PROGRAM = 1 << 20
ANSWER_MAX = 38_000
"""Maximum tokens of an answer: that of an agent of MapCoder (§3.4)."""
# function -> (tokens of its instructions, median tokens of its answer)
METAGPT = {
    "product manager": (600, 900), "architect": (500, 1100), "project manager": (500, 700),
    "engineer": (600, 2500), TESTER: (500, 900),
}  # fmt: skip
MAPCODER = {
    "retrieval": (400, 3500), "planning": (300, 900), "coding": (250, 700), "debugging": (350, 700),
}  # fmt: skip
REFLEXION = {"actor": (500, 1500), "evaluator": (200, 20), "self-reflection": (250, 200)}
DOCUMENT_TOKENS, DOCUMENT_ANSWER_TOKENS = 10_400, 5
DEBUGGED_SHARE, DEBUGS_MAX = 0.4, 5
"""Chance of another iteration, and most of them, as MapCoder's k and t."""
TRIALS_SHARE, TRIALS_MAX = 0.5, 4


class _Draft:
    """A program's calls while they are drawn: a chain with one history."""

    def __init__(self, draw: Random, number: int, models: Mapping[str, str]) -> None:
        self.draw, self.calls = draw, list[PlannedCall]()
        self._models, self._texts = models, count(number * TEXTS_PER_PROGRAM)
        self._history: tuple[Text, ...] = ()

    def read(self, tokens: int) -> None:
        """Append a new text to the history."""
        self._history += ((next(self._texts), tokens),)

    def add(self, function: str, lengths: tuple[int, int]) -> None:
        """Add a call with these instructions and a median answer."""
        self.read(lengths[0])
        prompt, answer, tokens = self._history, next(self._texts), self.length(lengths[1])
        call = PlannedCall(
            function,
            sum(tokens for _, tokens in prompt),
            tokens,
            (len(self.calls) - 1,) if self.calls else (),
            prefix=prompt,
            answer_text=answer,
            model=self._models[function],
        )
        self.calls.append(call)
        self._history += ((answer, tokens),)

    def length(self, median: int) -> int:
        """A length with this median."""
        return min(ANSWER_MAX, max(1, round(self.draw.lognormvariate(log(median), SPREAD))))


def _question(draft: _Draft) -> None:
    draft.read(draft.draw.randint(40, 120))
    expert = draft.draw.choice(["math expert", "humanities expert"])
    for function in ("router", expert):
        draft.add(function, LENGTHS[function])


def _report(draft: _Draft) -> None:
    draft.read(draft.draw.randint(20, 60))
    for function in ("researcher", "writer"):
        draft.add(function, LENGTHS[function])


def _company(draft: _Draft, lengths: Mapping[str, tuple[int, int]]) -> None:
    """Five roles; code that fails the test returns to the engineer."""
    draft.read(draft.draw.randint(80, 250))
    for function in ("product manager", "architect", "project manager", "engineer", TESTER):
        draft.add(function, lengths[function])
    for _ in range(REPAIRS_MAX):
        if draft.draw.random() >= REPAIRS_SHARE:
            break
        for function in ("engineer", TESTER):
            draft.add(function, lengths[function])


def _mapcoder(draft: _Draft) -> None:
    """Related problems are recalled, then plan and code, which is debugged while it fails."""
    draft.read(draft.length(500))
    for function in ("retrieval", "planning", "coding"):
        draft.add(function, MAPCODER[function])
    for _ in range(DEBUGS_MAX):
        if draft.draw.random() >= DEBUGGED_SHARE:
            break
        draft.add("debugging", MAPCODER["debugging"])


def _reflexion(draft: _Draft) -> None:
    """Trajectory and reward; after a failure a reflection and another trial."""
    draft.read(draft.length(800))
    for trial in range(TRIALS_MAX):
        if trial:
            draft.add("self-reflection", REFLEXION["self-reflection"])
        draft.add("actor", REFLEXION["actor"])
        draft.add("evaluator", REFLEXION["evaluator"])
        if draft.draw.random() >= TRIALS_SHARE:
            break


def _documents(draft: _Draft) -> None:
    """The foundation model and then a fine-tuned one answer about a long text."""
    draft.read(draft.length(DOCUMENT_TOKENS))
    for function in ("reader", "answerer"):
        draft.add(function, (30, DOCUMENT_ANSWER_TOKENS))


APPLICATIONS: dict[str, Callable[[_Draft], None]] = {
    "QA": _question,
    "RG": _report,
    "CG": lambda draft: _company(draft, LENGTHS),
    "MetaGPT": lambda draft: _company(draft, METAGPT),
    "MapCoder": _mapcoder,
    "Reflexion": _reflexion,
    "documents": _documents,
}


def workload(
    application: str, programs: int, per_s: float, seed: int, models: Mapping[str, str] = MODELS
) -> list[Program]:
    """Programs of one application with Poisson arrivals at a rate of `per_s`.

    Program i is the same at every rate. `models` has the model of each function. Raises
    MetropolisError on an unknown application, and on a function without a model.
    """
    if application not in APPLICATIONS:
        raise MetropolisError(
            f"there is no application {application!r}; there are {', '.join(APPLICATIONS)}"
        )
    arrivals, arrival_s, found = Random(f"{seed} arrivals"), 0.0, []
    for number in range(programs):
        arrival_s += arrivals.expovariate(per_s)
        draft = _Draft(Random(f"{seed} {application} {number}"), number, models)
        try:
            APPLICATIONS[application](draft)
        except KeyError as error:
            raise MetropolisError(f"no model is named for the function {error}") from None
        found.append(Program(f"{application} {number}", arrival_s, tuple(draft.calls)))
    return found
