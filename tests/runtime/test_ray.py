"""Workers on a real Ray cluster: the same history, also when their processes are killed."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Timer
from typing import Any

import pytest
import ray

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store.base import StoreError, StoreUnavailableError
from metropolis.store.embedded import EmbeddedServer
from metropolis.types import MetropolisError
from metropolis.workers.ray import Losses, run_actor
from metropolis.world.scenario import make_scenario
from metropolis.world.user_errors import explanation_of
from metropolis.worlds import minimal
from tests.runtime import killable
from tests.runtime.purchases import LONG_LEASE_S
from tests.runtime.walkers import Meadow, Walker, author
from tests.timeline.recorded_runs import check

STEPS = 25

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return killable.simulation(tmp_path_factory.mktemp("whole") / "it", "memory").run(STEPS)


@pytest.mark.parametrize("workers", ["ray:1", "ray"])
def test_the_history_is_that_of_a_run_in_memory(
    tmp_path: Path, shared: EmbeddedServer, whole: RunResult, workers: str
) -> None:
    run = killable.simulation(tmp_path / "it", shared.url, workers, lease_s=LONG_LEASE_S)
    result = run.run(STEPS)
    assert result.history_sha256 == whole.history_sha256
    assert result.calls == whole.calls
    assert check(tmp_path / "it", result).meta.clock == "real"
    assert max(Counter((tmp_path / "bought").read_text().splitlines()).values()) == 1


def test_workers_that_are_killed_are_replaced(
    tmp_path: Path, valkey: EmbeddedServer, whole: RunResult
) -> None:
    run = killable.simulation(tmp_path / "it", valkey.url, "ray:2")
    killed = killed_during(run, b"ray::_Actor")
    assert len(set(killed)) == 3
    assert run.result().history_sha256 == whole.history_sha256
    assert run.result().calls == whole.calls
    bought = Counter((tmp_path / "bought").read_text().splitlines())
    assert bought.total() <= whole.calls + 6 * len(killed)  # calls in flight


def killed_during(run: Simulation, name: bytes) -> list[int]:
    """Kill three workers of the name during `run`; return their processes."""
    killed: list[int] = []
    for record in run.steps(STEPS):
        if record.step in (3, 9, 15):
            pid = workers_alive(name)[len(killed) % 2 - 1]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def workers_alive(name: bytes = b"ray::_Actor") -> list[int]:
    """Return the processes of our actors."""
    while True:
        found = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and is_worker(entry, name)
        ]
        if len(found) == 2:
            return sorted(found)
        time.sleep(0.01)


def is_worker(process: Path, name: bytes) -> bool:
    """Return whether it is an actor of a Ray cluster that this process started."""
    try:
        if not (process / "cmdline").read_bytes().startswith(name):
            return False
        raylet = (process / "stat").read_text().rpartition(")")[2].split()[1]
        parent = Path(f"/proc/{raylet}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:  # the process has ended
        return False
    return int(parent) == os.getpid()


@pytest.mark.parametrize("name", ["minimal", "social"])
def test_worlds_of_ours(valkey: EmbeddedServer, name: str) -> None:
    digests = set()
    for how in ({"store": "memory"}, {"store": valkey.url, "workers": "ray:2"}):
        scenario = make_scenario(name, agents=5, seed=2)
        llm = Client(Scripted(scenario.author))
        result = Simulation(scenario.world, scenario.agents, llm, seed=2, **how).run(20)  # type: ignore[arg-type]
        digests.add(result.history_sha256)
    assert len(digests) == 1


class Failing(Walker):
    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 3:
            raise ZeroDivisionError("an agent's own fault")
        return await super().proceed(observation, llm)


def test_what_goes_wrong_is_raised_where_the_run_was_started(valkey: EmbeddedServer) -> None:
    world = Meadow(3)
    agents = [Failing(name) for name in world.names]
    with pytest.raises(ZeroDivisionError, match="own fault"):
        Simulation(world, agents, Scripted(author), store=valkey.url, workers="ray:1").run(5)


class Leaving(Walker):
    """Ends its worker's process."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 2 and self.name == "w01":
            os._exit(1)
        return await super().proceed(observation, llm)


def test_an_agent_that_ends_its_workers_is_named(
    valkey: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metropolis.workers.ray.LOSSES_MAX", 2)
    world = Meadow(3)
    agents = [Leaving(name) for name in world.names]
    options: dict[str, Any] = {"store": valkey.url, "workers": "ray:2", "lease_s": 5}
    run = Simulation(world, agents, Scripted(author), **options)
    with pytest.raises(MetropolisError, match=r"2 workers .*'w01' from step \d on.* ended its p"):
        run.run(5)


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoPickleError(Exception):
    def __init__(self, _text: str) -> None:
        super().__init__("neither can it be unpickled")

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class TwoPartsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


class NoNotesError(Exception):
    def __reduce__(self) -> Any:
        return NoNotesError, ()


class HeldError(Exception):
    def __init__(self) -> None:
        self.lock = Lock()


ODD_ERRORS = {
    type(error).__name__: error
    for error in (
        NoTextError(),
        NoPickleError("odd"),
        TwoPartsError("can", "not be unpickled"),
        NoNotesError(),
        HeldError(),
        KeyboardInterrupt(),
    )
}


@dataclass
class Odd(Walker):
    error: str = ""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        raise ODD_ERRORS[self.error]


@pytest.mark.parametrize("name", ODD_ERRORS)
def test_errors_that_ray_cannot_send_name_their_agent(valkey: EmbeddedServer, name: str) -> None:
    world = Meadow(1)
    agents = [Odd("w00", error=name)]
    run = Simulation(world, agents, Scripted(author), store=valkey.url, workers="ray:1")
    too_late = Timer(60, run.interrupt)
    too_late.start()
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- of several kinds
            run.run(3)
    finally:
        too_late.cancel()
    sentence = explanation_of(caught.value) or str(caught.value)
    assert sentence.startswith("step 0, agent 'w00', in Odd.proceed: ")
    assert f": {name}" in sentence


class Blocking(Walker):
    """Blocks its worker's event loop for a while."""

    async def proceed(self, observation: Any, llm: Any) -> Any:
        if self.step == 2 and self.name == "w01":
            time.sleep(4)
        return await super().proceed(observation, llm)


def test_an_agent_that_stalls_is_named(
    valkey: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    world = Meadow(3)
    agents = [Blocking(name) for name in world.names]
    options: dict[str, Any] = {"store": valkey.url, "workers": "ray:1", "stall_s": 0.4}
    Simulation(world, agents, Scripted(author), **options).run(4)
    told = [line for line in capfd.readouterr().err.splitlines() if "without a call" in line]
    stalls = [line for line in told if "Blocking" in line]  # a busy machine stalls others, too
    assert stalls
    for line in stalls:
        assert line.startswith("metropolis: step 2, agent 'w01', in Blocking.proceed")
    assert any("test_ray.py" in line for line in stalls)  # the last may come after the sleep


def test_what_cannot_be_shipped_is_refused(valkey: EmbeddedServer) -> None:
    world = Meadow(3)
    agents = [Walker(name) for name in world.names]
    with pytest.raises(MetropolisError, match="workers on Ray need a store"):
        Simulation(world, agents, workers="ray:1")
    world.lock = Lock()  # type: ignore[attr-defined]
    with pytest.raises(MetropolisError, match="cannot be sent to workers"):
        Simulation(world, agents, store=valkey.url, workers="ray:1").run(5)


class Named(Scripted):
    """Knows its model only after `check`, like a server's backend."""

    asked = False

    async def check(self) -> None:
        self.asked = True

    async def complete(self, request: Request) -> Completion:
        assert self.asked
        return await super().complete(request)


def test_workers_know_what_the_check_has_found(valkey: EmbeddedServer) -> None:
    world = Meadow(3)
    agents = [Walker(name) for name in world.names]
    Simulation(world, agents, Named(author), store=valkey.url, workers="ray:1").run(5)


def test_a_world_in_a_file_of_its_own(tmp_path: Path, valkey: EmbeddedServer) -> None:
    """Workers can import neither the file nor its imports."""
    beside = f"beside_{tmp_path.name}"  # imported once by this process
    (tmp_path / f"{beside}.py").write_text("WORDS = 'Pass it on'\n")
    lines = Path(minimal.__file__).read_text().replace('f"Pass this', 'f"{WORDS}: this')
    (tmp_path / "own_world.py").write_text(f"from {beside} import WORDS\n{lines}")
    digests = set()
    for how in ({"store": "memory"}, {"store": valkey.url, "workers": "ray:1"}):
        scenario = make_scenario(str(tmp_path / "own_world.py"), agents=5, seed=2)
        llm = Client(Scripted(scenario.author))
        result = Simulation(scenario.world, scenario.agents, llm, seed=2, **how).run(10)  # type: ignore[arg-type]
        digests.add(result.history_sha256)
    assert len(digests) == 1


def test_an_author_in_a_file_of_its_own(tmp_path: Path, valkey: EmbeddedServer) -> None:
    """World and agents are installed."""
    file = tmp_path / f"author_{tmp_path.name}.py"
    file.write_text(
        "from metropolis import Scenario\nfrom metropolis.worlds import minimal\n\n"
        "def author(request, random):\n    return 'Lost 3 geese'\n\n"
        "def make(*, agents=None, seed=0):\n    scenario = minimal.make(agents=agents)\n"
        "    return Scenario(scenario.world, scenario.agents, author)\n"
    )
    scenario = make_scenario(str(file), agents=5)
    llm = Client(Scripted(scenario.author))
    run = Simulation(scenario.world, scenario.agents, llm, store=valkey.url, workers="ray:1")
    assert run.run(20).calls


def test_workers_import_what_the_driver_imports(tmp_path: Path) -> None:
    """They do not import from the start folder, in a clone an uncompiled metropolis."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('not this one')")
    where = ["--store", "embedded", "--workers", "ray:1", "--out", "it"]
    script = Path(sys.executable).with_name("metropolis")
    subprocess.run([script, "run", "minimal", *where], cwd=tmp_path, check=True)
    assert (tmp_path / "it" / "trace.parquet").exists()


def test_what_workers_cannot_import_is_named(tmp_path: Path, valkey: EmbeddedServer) -> None:
    """A module is shipped only if the driver has imported it."""
    beside, world = f"late_{tmp_path.name}", tmp_path / f"late_world_{tmp_path.name}.py"
    (tmp_path / f"{beside}.py").write_text("FAR = 4\n")
    observe = 'return {"near"'
    lines = Path(minimal.__file__).read_text()
    world.write_text(lines.replace(observe, f"import {beside}\n        {observe}"))
    scenario = make_scenario(str(world), agents=3)
    run = Simulation(scenario.world, scenario.agents, store=valkey.url, workers="ray:1")
    with pytest.raises(MetropolisError, match=f"cannot import .* named '{beside}'.*; install it"):
        run.run(3)


def test_a_node_without_what_metropolis_needs(tmp_path: Path) -> None:
    """Its actors cannot be created."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('not this one')")
    lines = (
        "import os",
        "from metropolis.cli import main, run",
        f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}",
        "main()",
    )
    where = ["--store", "embedded", "--workers", "ray:1", "--out", str(tmp_path / "it")]
    command = [sys.executable, "-c", "; ".join(lines), "run", "minimal", *where]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    sentence = ended.stderr.splitlines()[-1]
    assert "cannot import what the run needs (ImportError: not this one); install it" in sentence
    assert sentence.startswith("metropolis: a worker on Ray cannot")


def test_a_store_that_only_one_node_cannot_reach_ends_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the driver, with its own patience, decides whether the store is lost."""
    failures = [StoreUnavailableError("not from here"), StoreError("refused")]

    class Silent:
        @staticmethod
        def remote() -> asyncio.Future[str]:
            return asyncio.get_running_loop().create_future()

    class Actor:
        @property
        def run(self) -> Actor:
            return self

        @property
        def stall(self) -> type[Silent]:
            return Silent

        def remote(self, worker: str) -> asyncio.Future[bytes]:
            task: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            task.set_result(pickle.dumps(failures.pop(0)))
            return task

    monkeypatch.setattr(ray, "kill", lambda actor: None)
    with pytest.raises(StoreError, match="refused"):
        asyncio.run(run_actor(Actor(), Losses("redis://nowhere", "it")))
    assert not failures
