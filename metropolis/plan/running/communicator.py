"""The communicator between nodes: which requests can be sent, and their prompts (SamuLLM §4.3).

A state machine without I/O. A request is *waiting* until the answers that it needs are known, then
*ready*, *sent* after `take`, and *answered*; `put_back` makes a sent one ready again. Of the ready
requests of a node, that of the lowest index goes first.

Requests do not pass the gateway: it routes by model, but two nodes may share one, and a request
must go to a copy of its own node; and the gateway's engines are fixed at its start, whereas copies
come and go with the stages. The runner sends each request to the copy with the fewest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from metropolis.llm.base import Completion
from metropolis.plan.application import Application, prompt_of

Call = tuple[str, int]
"""A node, and the index of one of its requests."""


class Communicator:
    """The requests of `application`, of which `answers` are known.

    Raises ApplicationError if a part of a prompt has no text.
    """

    def __init__(self, application: Application, answers: Mapping[Call, Completion]) -> None:
        self.requests = application.requests()
        self.answers = dict(answers)
        self._nodes = {node.name: node for node in application.nodes}
        self._open = {
            name: {index for index in range(len(each)) if (name, index) not in answers}
            for name, each in self.requests.items()
        }
        self._ready: dict[str, list[int]] = {name: [] for name in self.requests}
        self._missing: dict[Call, int] = {}
        """Waiting request -> the number of answers that it still needs."""
        self._dependents: dict[Call, list[Call]] = {}
        for name, indices in self._open.items():
            for index in sorted(indices):
                prompt_of(self._nodes[name], self.requests[name][index], defaultdict(str))
                self._enter((name, index))

    @property
    def unfinished(self) -> frozenset[str]:
        """Nodes with requests that are not answered."""
        return frozenset(name for name, indices in self._open.items() if indices)

    def open_requests(self, name: str) -> int:
        """The number of a node's requests that are not answered."""
        return len(self._open[name])

    def take(self, name: str) -> int | None:
        """The next ready request of a node, which counts as sent; None if there is none."""
        return heappop(self._ready[name]) if self._ready[name] else None

    def put_back(self, call: Call) -> None:
        """The request was sent in vain: it is ready again."""
        heappush(self._ready[call[0]], call[1])

    def prompt(self, call: Call) -> str:
        """The prompt of a request that is ready or sent."""
        name, index = call
        texts = {need: self.answers[need].text for need in self._needs(call)}
        return prompt_of(self._nodes[name], self.requests[name][index], texts)

    def answered(self, call: Call, completion: Completion) -> set[str]:
        """Note the answer to a sent request; returns the nodes that have more ready requests."""
        self.answers[call] = completion
        self._open[call[0]].remove(call[1])
        woken = set()
        for dependent in self._dependents.pop(call, ()):
            self._missing[dependent] -= 1
            if not self._missing[dependent]:
                del self._missing[dependent]
                self.put_back(dependent)
                woken.add(dependent[0])
        return woken

    def _enter(self, call: Call) -> None:
        missing = {need for need in self._needs(call) if need not in self.answers}
        for need in missing:
            self._dependents.setdefault(need, []).append(call)
        if missing:
            self._missing[call] = len(missing)
        else:
            self.put_back(call)

    def _needs(self, call: Call) -> Iterable[Call]:
        name, index = call
        request = self.requests[name][index]
        yield from ((node, other) for _, node, other in request.answers)
        if request.previous is not None:
            yield name, request.previous
