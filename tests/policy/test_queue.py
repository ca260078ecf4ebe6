"""A queue hands requests out in its policy's order, however often that changes."""

from __future__ import annotations

from weakref import WeakSet

from hypothesis import given
from hypothesis import strategies as st

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.policy.queue import DISCARDED_MAX, RequestQueue


class Watched(QueuedRequest):
    """Can be observed until it is freed."""

    __slots__ = ("__weakref__",)


class Fickle(Policy):
    """Ranks by what it was told last."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}

    def rank(self, request: QueuedRequest) -> int:
        return self.ranks.get(request.id, 0)


def request(number: int, arrived_s: float = 0.0, **about: object) -> QueuedRequest:
    return QueuedRequest(number, "p", "f", 1, arrived_s, 0.0, **about)  # type: ignore[arg-type]


@given(st.data())
def test_the_smallest_rank_goes_first(data: st.DataObject) -> None:
    policy = Fickle()
    queue = RequestQueue(policy)
    waiting: dict[int, QueuedRequest] = {}
    discarded: list[QueuedRequest] = []
    for number in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["push", "push", "pop", "discard", "return", "change"])):
            case "push":
                policy.ranks[number] = data.draw(st.integers(0, 3))
                waiting[number] = request(number, data.draw(st.integers(0, 2)))
                queue.push(waiting[number])
            case "pop" if waiting:
                first = min(waiting.values(), key=lambda r: (policy.rank(r), r.arrived_s, r.id))
                assert queue.pop() is first
                del waiting[first.id]
            case "discard" if waiting:
                gone = data.draw(st.sampled_from(sorted(waiting)))
                queue.discard(gone)
                discarded.append(waiting.pop(gone))
            case "return" if discarded:
                again = discarded.pop()
                policy.ranks[again.id] = data.draw(st.integers(0, 3))
                waiting[again.id] = again
                queue.push(again)
            case "change":
                policy.ranks = {n: data.draw(st.integers(0, 3)) for n in waiting}
                policy.version += 1
        assert len(queue) == len(waiting)
        assert sorted(one.id for one in queue.requests()) == sorted(waiting)


def test_discarded_requests_do_not_fill_memory() -> None:
    queue = RequestQueue(Fickle())
    for number in range(5 * DISCARDED_MAX):
        queue.push(request(number))
        queue.discard(number)
    assert len(queue) == 0
    assert len(queue._heap) <= DISCARDED_MAX


def test_discarded_requests_are_freed() -> None:
    queue, alive = RequestQueue(Fickle()), WeakSet[QueuedRequest]()
    for number in range(10):
        asked = Watched(number, "p", "f", 1, 0.0, 0.0)
        alive.add(asked)
        queue.push(asked)
        if number:
            queue.discard(number)  # the first one keeps its place before them
    del asked
    assert [one.id for one in alive] == [0]
