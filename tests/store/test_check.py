"""Every store passes the checker, which finds faulty ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from metropolis.store.base import Server, Store
from metropolis.store.check import check_store
from metropolis.store.memory import MemoryServer, MemoryStore
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.world.entities import Entity


def test_it_keeps_its_promises(server: Server) -> None:
    before = server.runs()
    check_store(server)
    assert server.runs() == before


class CommitsTwice(MemoryStore):
    def commit(self, *about: Any, **more: Any) -> bool:
        super().commit(*about, **more)
        return True


class StopsShort(MemoryStore):
    def dispatch(self, *about: Any) -> None:
        super().dispatch(*about[:4])


class NeverForgets(MemoryStore):
    def collect(self, fence: int, below: Step) -> None:
        self._fenced(fence)


class ObeysAnybody(MemoryStore):
    def collect(self, fence: int, below: Step) -> None:
        super().collect(self._run.fence, below)


class ForgetsMinds(MemoryStore):
    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        return dict.fromkeys(agents)


class EndsAsItBegan(MemoryStore):
    def set_last_step(self, fence: int, last_step: Step) -> None:
        self._fenced(fence)


class AheadOfItself(MemoryStore):
    def world(self, step: Step) -> tuple[list[Entity], list[Any]]:
        return super().world(step + 1)


class AsksNobody(MemoryStore):
    def keep_answer(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (CommitsTwice, "accepts the commit of a claim that others have now"),
        (StopsShort, "does not return the end of a lookahead"),
        (NeverForgets, "keeps acknowledgements it should drop"),
        (ObeysAnybody, "obeys a controller that has lost its lease"),
        (ForgetsMinds, "forgets a mind that is claimed"),
        (EndsAsItBegan, "shows the ends"),
        (AheadOfItself, "has a world of"),
        (AsksNobody, "loses an answer"),
    ],
)
def test_broken_promises_are_found(broken: type[MemoryStore], sentence: str) -> None:
    class BrokenServer(MemoryServer):
        def store(self, run: str) -> Store:
            return broken(self, run)

    with pytest.raises(MetropolisError, match=f"{broken.__name__} {sentence}"):
        check_store(BrokenServer())


class ForgetsToList(MemoryServer):
    def runs(self) -> list[str]:
        return []


class KeepsAll(MemoryServer):
    def remove(self, run: str) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [(ForgetsToList, "does not list a run"), (KeepsAll, "removes a run that does not exist")],
)
def test_a_fault_of_the_server_names_its_class(broken: type[MemoryServer], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=f"{broken.__name__} {sentence}"):
        check_store(broken())
