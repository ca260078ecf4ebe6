"""Programs with the statistics of the workloads of Agentix (§6.1, figure 11).

From the paper: means and maxima of calls per program, mean tokens of prompts and answers, long
tails, Poisson arrivals, and that programs share only system prompts (§3.2). *Estimates*, because
the paper shows them in figures without numbers or not at all: the spreads, the division of a prompt
into shared and new parts, and the shape of the trees. Its 256 prompt tokens of a chat can only be
those that a turn adds, since the earlier turns alone would be more; the other lengths are taken as
whole prompts.

Tools: the paper counts them in a program's latency (§3) and does not say how long they take. The
search looks up Wikipedia for every action: 0.69 s with a standard deviation of 0.17 s, as measured
by InferCept (Abhyankar et al. 2024, table 1) for HotpotQA. *Estimates*: every action is a look-up,
and those of siblings run at the same time. BFCL v3 calls functions in its own process, which takes
next to no time. Users of chats answer at once, since the paper replays recorded conversations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import exp
from random import Random

from metropolis.trace.programs import PlannedCall, Program, Text
from metropolis.types import MetropolisError


@dataclass(frozen=True)
class Tail:
    """A truncated lognormal distribution of whole numbers."""

    mean: float
    spread: float
    """Standard deviation of the logarithm."""
    most: int

    def draw(self, draw: Random) -> int:
        """Return a value from 1 to `most`; `mean` is that of the untruncated distribution."""
        value = self.mean * exp(draw.gauss(0, self.spread) - self.spread**2 / 2)
        return min(self.most, max(1, round(value)))


SHARED_TEXTS = 64
"""Texts shared by all programs have smaller ids, texts of one program larger ones."""
TEXTS_PER_PROGRAM = 1 << 20


class _Draft:
    """A program's calls while they are drawn."""

    def __init__(self, draw: Random, tools: Random, number: int) -> None:
        self.draw, self.tools, self.calls = draw, tools, list[PlannedCall]()
        self._texts = count(SHARED_TEXTS + number * TEXTS_PER_PROGRAM)

    def text(self, tokens: int) -> Text:
        """Return a new text."""
        return next(self._texts), tokens

    def add(
        self,
        function: str,
        prompt: tuple[Text, ...],
        tokens: int,
        *parents: int,
        delay_s: float = 0.0,
    ) -> Text:
        """Add a call that is sent `delay_s` after its parents' answers; returns its answer."""
        answer, prompt_tokens = self.text(tokens), sum(tokens for _, tokens in prompt)
        call = PlannedCall(
            function, prompt_tokens, tokens, parents, None, prompt, answer[0], delay_s=delay_s
        )
        self.calls.append(call)
        return answer

    @property
    def last(self) -> int:
        """Index of the last added call."""
        return len(self.calls) - 1


CHAT_CALLS, CHAT_TURN, CHAT_ANSWER = Tail(6.75, 1.0, 80), Tail(259, 1.0, 2048), Tail(278, 0.8, 2048)
CHAT_SYSTEM: Text = (0, 40)


def chat(draft: _Draft) -> None:
    """ShareGPT: turns of a user; each prompt is the conversation so far."""
    draw = draft.draw
    prompt: tuple[Text, ...] = (CHAT_SYSTEM,)
    parents: tuple[int, ...] = ()
    for turn in range(CHAT_CALLS.draw(draw)):
        prompt += (draft.text(CHAT_TURN.draw(draw)),)
        prompt += (draft.add("chat", prompt, CHAT_ANSWER.draw(draw), *parents),)
        parents = (turn,)


TOOL_CALLS, TOOL_ANSWER = Tail(10.85, 0.7, 70), Tail(34.2, 0.5, 256)
TOOL_TASK, TOOL_RESULT = Tail(40, 0.5, 256), Tail(22, 0.6, 256)
TOOL_SYSTEMS: tuple[Text, ...] = tuple((1 + api, 166 + 20 * api) for api in range(8))
"""System prompts, each with the signatures of one set of tools."""


def tool_use(draft: _Draft) -> None:
    """BFCL: a task, then sequential tool calls, whose results are read."""
    draw = draft.draw
    parents: tuple[int, ...] = ()
    prompt: tuple[Text, ...] = (draw.choice(TOOL_SYSTEMS), draft.text(TOOL_TASK.draw(draw)))
    for step in range(TOOL_CALLS.draw(draw)):
        answer = draft.add("tool use", prompt, TOOL_ANSWER.draw(draw), *parents)
        prompt += (answer, draft.text(TOOL_RESULT.draw(draw)))
        parents = (step,)


SEARCH_WIDTH, SEARCH_DEPTH_MAX = 5, 7
SEARCH_ANSWERED, SEARCH_EXPANSIONS_MAX = 0.06, 50
"""Probability that an expansion ends the search with an answer, and the number after which LATS
(Zhou et al. 2023) gives up. The constant probability is an estimate; it gives the paper's mean."""
SEARCH_ANSWER, SEARCH_OBSERVATION = Tail(72.7, 0.6, 512), Tail(20, 0.6, 256)
SEARCH_QUESTION = Tail(30, 0.3, 128)
SEARCH_SYSTEM: Text = (10, 124)
SEARCH_JUDGE: Text = (11, 124)
LOOK_UP_S, LOOK_UP_DEVIATION_S = 0.69, 0.17
"""Mean and standard deviation of a request to Wikipedia (InferCept, table 1)."""


def tree_search(draft: _Draft) -> None:
    """LATS: expand a node with parallel actions, judge their results, choose the next node."""
    draw = draft.draw
    question = (draft.text(SEARCH_QUESTION.draw(draw)),)
    leaves: list[tuple[Text, ...]] = [()]
    joined: tuple[int, ...] = ()
    for _ in range(SEARCH_EXPANSIONS_MAX):
        path = leaves.pop(draw.randrange(len(leaves))) if leaves else ()
        children, acted = [], []
        for _ in range(SEARCH_WIDTH):
            prompt = (SEARCH_SYSTEM, *question, *path)
            action = draft.add("act", prompt, SEARCH_ANSWER.draw(draw), *joined)
            children.append((*path, action, draft.text(SEARCH_OBSERVATION.draw(draw))))
            acted.append(draft.last)
        first = draft.last + 1
        for child, parent in zip(children, acted, strict=True):
            look_up_s = max(0.0, draft.tools.gauss(LOOK_UP_S, LOOK_UP_DEVIATION_S))
            prompt = (SEARCH_JUDGE, *question, *child)
            draft.add("judge", prompt, SEARCH_ANSWER.draw(draw), parent, delay_s=look_up_s)
        joined = tuple(range(first, draft.last + 1))
        leaves += [child for child in children if len(child) < 2 * SEARCH_DEPTH_MAX]
        if draw.random() < SEARCH_ANSWERED:
            return


WORKLOADS: dict[str, Callable[[_Draft], None]] = {
    "ShareGPT": chat,
    "BFCL": tool_use,
    "LATS": tree_search,
}
MIXED = "mixed"


def workload(name: str, programs: int, per_s: float, seed: int) -> list[Program]:
    """Programs of one kind, or of all in equal shares; Poisson arrivals at a rate of `per_s`.

    Program i is the same at every rate. Raises MetropolisError on an unknown name.
    """
    if name != MIXED and name not in WORKLOADS:
        raise MetropolisError(
            f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}, {MIXED}"
        )
    arrivals, arrival_s = Random(f"{seed} arrivals"), 0.0
    found = []
    for number, (kind, calls) in enumerate(_drawn(name, programs, seed)):
        arrival_s += arrivals.expovariate(per_s)
        found.append(Program(f"{kind} {number}", arrival_s, calls))
    return found


@lru_cache(maxsize=2)
def _drawn(name: str, programs: int, seed: int) -> list[tuple[str, tuple[PlannedCall, ...]]]:
    """The programs without arrivals; cached, because callers vary the rate."""
    kinds = list(WORKLOADS) if name == MIXED else [name]
    found = []
    for number in range(programs):
        draw = Random(f"{seed} {name} {number}")
        kind = draw.choice(kinds)
        draft = _Draft(draw, Random(f"{seed} {name} {number} tools"), number)
        WORKLOADS[kind](draft)
        found.append((kind, tuple(draft.calls)))
    return found
