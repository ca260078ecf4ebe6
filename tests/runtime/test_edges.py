"""The graph of blocked agents, read from the store of an active run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from metropolis.store.base import Inspection, Store
from metropolis.store.embedded import EmbeddedServer
from tests.runtime import killable

STEPS = 25


def stored(server: EmbeddedServer, out: Path) -> Store:
    return server.store(json.loads((out / "store.json").read_text())["run"])


def check(about: Inspection) -> None:
    """Assert that no agent waits for agents ahead of it, and that no runnable agent waits."""
    for agent, blocker in about.blocked_by.items():
        assert about.steps[blocker] <= about.steps[agent], about
    for queued in (*about.ready, *about.claimed):
        assert not about.blocked_by.keys() & set(queued.agents), about


class Watching:
    """Inspects a store repeatedly in a thread."""

    def __init__(self, inspect: Callable[[], Inspection]) -> None:
        self._inspect, self._ended = inspect, Event()
        self.seen: list[Inspection] = []
        self._thread = Thread(target=self._look)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            self.seen.append(self._inspect())


def test_edges_agree_with_steps_at_every_moment(tmp_path: Path, shared: EmbeddedServer) -> None:
    out = tmp_path / "it"
    steps = killable.simulation(out, shared.url).steps(STEPS)
    next(steps)
    store = stored(shared, out)
    with Watching(store.inspect) as watching:
        assert len(list(steps)) == STEPS - 1
    for about in watching.seen:
        check(about)
    assert any(about.blocked_by for about in watching.seen)
    assert store.inspect().blocked_by == {}


def test_what_the_last_driver_has_told_is_corrected(tmp_path: Path, shared: EmbeddedServer) -> None:
    out = tmp_path / "it"
    steps = killable.simulation(out, shared.url).steps(STEPS)
    next(steps)
    steps.close()
    store = stored(shared, out)
    fence = store.take_lease("somebody", 10)
    wrong = {agent: (agent + 1) % 6 for agent in range(6)}
    store.dispatch(fence, [], wrong, store.inspect().floor)
    store.release_lease(fence)
    for _ in killable.simulation(out, shared.url).steps(STEPS):
        check(store.inspect())
    assert store.inspect().blocked_by == {}


def test_a_run_in_memory_is_inspected_like_any(tmp_path: Path) -> None:
    run = killable.simulation(tmp_path / "it", "memory")
    seen = []
    for record in run.steps(STEPS):
        seen.append(run.inspect())
        check(seen[-1])
        assert min(seen[-1].steps) > record.step
    assert any(about.blocked_by for about in seen)
    assert any(about.claimed for about in seen)
    assert (seen[-1].floor, seen[-1].blocked_by) == (STEPS, {})
    assert seen[-1].counts["agent_steps"] == STEPS * len(run.agents)
