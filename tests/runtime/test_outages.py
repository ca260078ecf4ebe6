"""Outages of the model and the store during a run."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from metropolis.bench.stub_server import ASKED, stub_server
from metropolis.llm import UnreachableError
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.base import StoreError
from metropolis.store.embedded import EmbeddedServer
from tests.runtime.walkers import Meadow, Walker

STEPS = 20
AWAY_AT = 6


class Model:
    """A stub model at a fixed address, which can be stopped."""

    def __init__(self, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.log, self.url = log, f"http://127.0.0.1:{self._port}"
        self._here = ExitStack()

    def come(self) -> None:
        self._here.enter_context(
            stub_server(0.005, 1, "--log", f"{self.log}", "--port", f"{self._port}")
        )

    def go(self) -> None:
        self._here.close()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    model = Model(tmp_path / "asked")
    model.come()
    yield model
    model.go()


def simulation(model: Model, patience_s: float, **how: Any) -> Simulation:
    world = Meadow(6, side=9, joint=1)
    agents = [Walker(name) for name in world.names]
    client = Client(Compatible(model.url), patience_s=patience_s)
    return Simulation(world, agents, client, seed=5, lease_s=1.0, **how)


def whole(model: Model) -> RunResult:
    """The run without an outage; its purchases are not counted."""
    result = simulation(model, 60).run(STEPS)
    os.truncate(model.log, 0)
    return result


def test_a_run_waits_for_a_model_that_is_away(
    model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = whole(model)
    run = simulation(model, 60)
    for record in run.steps(STEPS):
        if record.step == AWAY_AT:
            model.go()
            back = Timer(3.0, model.come)
            back.start()
    back.join()
    assert run.result().history_sha256 == expected.history_sha256
    said = capsys.readouterr().err
    assert said.count("cannot be reached") == said.count("answers again") == 1


def test_a_run_that_is_out_of_patience_is_resumed(model: Model, tmp_path: Path) -> None:
    expected = whole(model)
    out = tmp_path / "it"
    run = simulation(model, 0.5, out=out, store="embedded")
    with pytest.raises(UnreachableError, match="cannot be reached"):  # noqa: PT012
        for record in run.steps(STEPS):
            if record.step == AWAY_AT:
                model.go()
    model.come()
    result = simulation(model, 60, out=out, resume=True).run(STEPS)
    assert result.history_sha256 == expected.history_sha256
    lines = [line.split() for line in model.log.read_text().splitlines()]
    bought = Counter(key for what, _, key in lines if what == ASKED)
    assert bought.total() <= expected.calls + 6  # a walker has one call in flight at most


@pytest.mark.parametrize("how", [{"workers": 1}, {"workers": 3}, {"mode": "optimistic"}])
def test_a_store_is_started_again_under_a_run(
    model: Model, tmp_path: Path, how: dict[str, Any]
) -> None:
    expected = whole(model)
    with EmbeddedServer(tmp_path / "store") as server:
        assert isinstance(server, EmbeddedServer)
        run = simulation(model, 60, store=server.url, **how)
        for record in run.steps(STEPS):
            if record.step == AWAY_AT:
                os.kill(server.pid, signal.SIGKILL)
                back = Timer(1.0, server.restart)
                back.start()
        back.join()
        assert run.result().history_sha256 == expected.history_sha256


@pytest.mark.parametrize("how", [{"workers": 2}, {"mode": "optimistic"}])
def test_a_run_ends_at_once_with_its_own_store_server(
    model: Model, tmp_path: Path, how: dict[str, Any]
) -> None:
    expected = whole(model)
    out = tmp_path / "it"
    run = simulation(model, 60, out=out, store="embedded", **how)
    with pytest.raises(StoreError, match=r"the embedded server has ended, .*server\.log may say"):  # noqa: PT012
        for record in run.steps(STEPS):
            if record.step == AWAY_AT:
                os.kill(run._stored._server.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    result = simulation(model, 60, out=out, resume=True).run(STEPS)
    assert result.history_sha256 == expected.history_sha256
