"""A damaged embedded store leads to the undamaged history or to one sentence, never to another.

Campaign: `METROPOLIS_FUZZ_INPUTS=2000 pytest -m campaign tests/runtime/test_damaged_stores.py`;
a failure names the seed of its input.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Request
from metropolis.llm.client import Client
from metropolis.runtime.live.result import RunResult
from metropolis.runtime.live.simulation import Simulation
from metropolis.store import seals
from metropolis.types import MetropolisError
from tests.runtime.purchases import leave
from tests.runtime.test_damaged_folders import watched
from tests.runtime.walkers import Meadow, Walker, author

STEPS = 14
STOPPED_AT = 6
SEED = 3
INPUTS = 24
CAMPAIGN_INPUTS = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "300"))
LEASE_S = 0.3
PATIENCE_S = 30.0


class Uneven(Scripted):
    """Latencies that let some agents get ahead of others."""

    async def complete(self, request: Request) -> Completion:
        await asyncio.sleep(0.002 * (request.agent % 3) ** 2)
        return await super().complete(request)


def simulation(out: Path, backend: type[Scripted] = Scripted, **how: object) -> Simulation:
    world = Meadow(5, side=8, joint=1)
    agents = [Walker(name) for name in world.names]
    llm = Client(backend(author), retries=0)
    return Simulation(world, agents, llm, seed=SEED, out=out, lease_s=LEASE_S, **how)  # type: ignore[arg-type]


# --- damage to bytes, and to commands with correct lengths

Commands = list[list[bytes]]


def commands_in(content: bytes) -> Commands:
    found: Commands = []
    at = 0
    while at < len(content):
        end = content.index(b"\r\n", at)
        count, at = int(content[at + 1 : end]), end + 2
        found.append([])
        for _ in range(count):
            end = content.index(b"\r\n", at)
            size, at = int(content[at + 1 : end]), end + 2
            found[-1].append(content[at : at + size])
            at += size + 2
    return found


def written(commands: Sequence[Sequence[bytes]]) -> bytes:
    return b"".join(
        b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in command)
        for command in commands
    )


def flip_bit(content: bytes, draw: Random) -> bytes:
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def change(content: bytes, draw: Random, pattern: bytes, others: bytes) -> bytes:
    found = [match.start() for match in re.finditer(pattern, content)]
    if not found:
        return flip_bit(content, draw)
    at = draw.choice(found)
    other = draw.choice([sign for sign in others if sign != content[at]])
    return content[:at] + bytes([other]) + content[at + 1 :]


def change_digit(content: bytes, draw: Random) -> bytes:
    return change(content, draw, rb"\d", b"0123456789")


def change_letter(content: bytes, draw: Random) -> bytes:
    return change(content, draw, rb"[a-z]", b"abcdefghijklmnopqrstuvwxyz")


def change_number(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    command = draw.choice([one for one in commands if re.search(rb"\d", b" ".join(one[2:]))])
    which = draw.choice([i for i in range(2, len(command)) if re.search(rb"\d", command[i])])
    number = draw.choice([*re.finditer(rb"\d+", command[which])])
    now = draw.choice([b"0", b"%d" % (int(number[0]) + 1), b"%d" % (int(number[0]) * 10)])
    command[which] = command[which][: number.start()] + now + command[which][number.end() :]
    return written(commands)


def repeat_command(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    at = draw.randrange(len(commands))
    return written([*commands[: at + 1], *commands[at:]])


def remove_command(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    del commands[draw.randrange(len(commands))]
    return written(commands)


def exchange_commands(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    at = draw.randrange(1, len(commands))
    commands[at - 1 : at + 1] = commands[at], commands[at - 1]
    return written(commands)


def remove_transaction(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    begins = draw.choice([i for i, one in enumerate(commands) if one[0].upper() == b"MULTI"])
    ends = next(i for i in range(begins, len(commands)) if commands[i][0].upper() == b"EXEC")
    return written([*commands[:begins], *commands[ends + 1 :]])


def cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content))]


def cut_commands(content: bytes, draw: Random) -> bytes:
    commands = commands_in(content)
    return written(commands[: -draw.randrange(1, min(40, len(commands)))])


ANY: tuple[Callable[[bytes, Random], bytes], ...] = (flip_bit, change_digit, change_letter, cut)
OF_COMMANDS: tuple[Callable[[bytes, Random], bytes], ...] = (
    change_number,
    repeat_command,
    remove_command,
    exchange_commands,
    remove_transaction,
    cut_commands,
)


def damage(store: Path, draw: Random) -> str:
    """Damage one of the append-only files once; return a description."""
    logs = sorted((store / seals.LOGS).iterdir())
    path = draw.choice([*logs, *(12 * [path for path in logs if path.suffix == ".aof"])])
    is_log = path.name.endswith(".incr.aof")
    act = draw.choice((*ANY, *OF_COMMANDS) if is_log else ANY)
    content = path.read_bytes()
    while (now := act(content, draw)) == content:
        act = flip_bit
    path.write_bytes(now)
    return f"{path.name}, {act.__name__}"


# --- stopped runs


@dataclass(frozen=True)
class Stopped:
    """A run's folder, restored in place before each input: its store's address is absolute."""

    folder: Path
    kept: Path
    whole: RunResult

    @classmethod
    def by(cls, stop: Callable[[Path], None], top: Path) -> Stopped:
        whole = simulation(top / f"{stop.__name__} whole").run(STEPS)
        folder = top / stop.__name__
        stop(folder)
        return cls(folder, Path(shutil.copytree(folder, top / f"{folder.name} kept")), whole)

    def put_back(self) -> None:
        gc.collect()  # end servers of runs that failed to start
        with (self.folder / "store" / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)


def reach_half(out: Path) -> None:
    leave(simulation(out, Uneven, store="embedded"), STEPS, STOPPED_AT)


PROGRAM = """
import os, sys, time
from pathlib import Path
from tests.runtime.test_damaged_stores import *
run = simulation(Path(sys.argv[1]), Uneven, store="embedded", checkpoint_wall_s=0.02)
server = run._stored._server
for record in run.steps(STEPS):
    if sys.argv[2] == "machine" and record.step == STOPPED_AT // 2:
        time.sleep(4 * seals.SEAL_S)
        os.kill(server._watch.pid, 9)
    if record.step == STOPPED_AT:
        if sys.argv[2] == "machine":
            os.kill(server.pid, 9)
        os.kill(os.getpid(), 9)
"""


def killed(out: Path, what: str) -> None:
    """Run half-way and kill with `kill -9`."""
    place = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(out), what]
    ended = subprocess.run(command, cwd=place, check=False)
    assert ended.returncode == -signal.SIGKILL


def killed_half_way(out: Path) -> None:
    """Kill only the run: its server ends in order and is sealed."""
    killed(out, "run")
    deadline_s = time.monotonic() + PATIENCE_S
    while not closed(out / "store") and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert closed(out / "store")


def failed_half_way(out: Path) -> None:
    """Kill the run with all its processes: the writes of the last steps are not sealed."""
    killed(out, "machine")
    assert not closed(out / "store")


def closed(store: Path) -> bool:
    return bool(json.loads((store / seals.SEAL).read_bytes())["is"]["closed"])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> list[Stopped]:
    top = tmp_path_factory.mktemp("stores")
    return [Stopped.by(stop, top) for stop in (reach_half, killed_half_way)]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return Stopped.by(failed_half_way, tmp_path_factory.mktemp("failed"))


def outcome(run: Stopped, what: str) -> tuple[str, str]:
    """Resume `run`; return the outcome and the error."""
    resumed = None
    try:
        with watched(what):
            resumed = simulation(run.folder, resume=True)
            result = resumed.run(STEPS)
    except MetropolisError as error:
        is_sentence = "\n" not in str(error) and str(run.folder) in str(error)
        return "refused" if is_sentence else "no sentence", str(error)
    except TimeoutError:
        if resumed is not None:  # an interrupted run leaves its server, which holds the lock
            os.kill(resumed._stored._server.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return "hangs", ""
    except Exception as error:  # noqa: BLE001 -- reported with its input
        return "traceback", repr(error)
    same = result.history_sha256 == run.whole.history_sha256
    return "equal" if same else "another history", ""


def attack(stopped: Sequence[Stopped], seeds: Sequence[int]) -> dict[str, list[str]]:
    """Damage and resume runs; return outcome -> inputs."""
    found: dict[str, list[str]] = {}
    for seed in seeds:
        draw = Random(f"store {seed}")
        run = draw.choice(stopped)
        run.put_back()
        what = f"seed {seed}: {run.folder.name}, {damage(run.folder / 'store', draw)}"
        how, said = outcome(run, what)
        found.setdefault(how, []).append(f"{what}: {said}")
    return found


def counted(found: dict[str, list[str]]) -> str:
    return f"{Counter({how: len(inputs) for how, inputs in found.items()})}\n"


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "opened", lambda _folder: None)


def test_an_undamaged_store_goes_on(stopped: Sequence[Stopped]) -> None:
    for run in stopped:
        run.put_back()
        assert outcome(run, "undamaged") == ("equal", "")
        assert closed(run.folder / "store")


def test_damage_is_told(stopped: Sequence[Stopped]) -> None:
    found = attack(stopped, range(INPUTS))
    assert found.keys() == {"refused"}, found


def test_the_way_back_leads_to_the_equal_history(stopped: Sequence[Stopped]) -> None:
    for run in stopped:
        run.put_back()
        damage(run.folder / "store", Random(1))
        how, said = outcome(run, "damaged")
        assert how == "refused"
        assert "`metropolis resume RUN --store memory`" in said
        again = simulation(run.folder, resume=True, store="memory").run(STEPS)
        assert again.history_sha256 == run.whole.history_sha256


def cut_off(failed: Stopped, seeds: Sequence[int]) -> dict[str, list[str]]:
    """Truncate the file after its last seal and resume; return outcome -> inputs."""
    found: dict[str, list[str]] = {}
    for seed in seeds:
        failed.put_back()
        (log,) = failed.folder.glob("store/appendonlydir/*.incr.aof")
        content = log.read_bytes()
        draw = Random(f"end {seed}")
        log.write_bytes(draw.choice([cut, cut_commands])(content, draw))
        what = f"seed {seed}: {log.stat().st_size} of {len(content)} bytes"
        how, said = outcome(failed, what)
        found.setdefault(how, []).append(f"{what}: {said}")
    return found


def test_an_end_that_was_not_sealed_may_be_lost(failed: Stopped) -> None:
    found = cut_off(failed, range(INPUTS // 3))
    assert found.keys() == {"refused", "equal"}, found
    assert all("is cut off after" in what for what in found["refused"]), found


@pytest.mark.campaign
def test_campaign_of_ends(failed: Stopped) -> None:
    found = cut_off(failed, range(CAMPAIGN_INPUTS))
    sys.stdout.write(counted(found))
    assert found.keys() == {"refused", "equal"}, found


@pytest.mark.campaign
def test_campaign(stopped: Sequence[Stopped]) -> None:
    found = attack(stopped, range(CAMPAIGN_INPUTS))
    sys.stdout.write(counted(found))
    assert found.keys() == {"refused"}, found


@pytest.mark.campaign
@pytest.mark.usefixtures("unsealed")
def test_campaign_without_seals(stopped: Sequence[Stopped]) -> None:
    """Without seals, damage leads to another history."""
    found = attack(stopped, range(CAMPAIGN_INPUTS))
    sys.stdout.write(counted(found))
    assert "another history" in found
