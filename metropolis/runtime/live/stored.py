"""A run in a store: its location, its initial data, and its resumption."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from metropolis.addresses import with_absolute_files, without_secrets
from metropolis.durable import read_object, write_object
from metropolis.rules.metrics import Hops
from metropolis.runtime.folder.checkpoint import Checkpoint
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.signature import distrust_reason, sign
from metropolis.runtime.live.configuration import RunConfiguration
from metropolis.store.base import RunInfo, Store, StoreError
from metropolis.store.cells import reach_of
from metropolis.store.factory import is_own_store, open_server
from metropolis.store.memory import MemoryServer
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.entities import Entity, Event
from metropolis.world.saved_check import SavedWhenRead, save_checked
from metropolis.world.saving import check_same_agents

MEMORY = "memory"
_UNNAMEABLE = re.compile(r"[^\w .,#%+=@()\[\]'-]+")
"""Characters of a folder's name that its run's name in a store does not have."""
_RECOVERY = (
    "restore the file as the run wrote it, or continue from the last checkpoint with --store "
    'memory, in Python with store="memory"'
)
"""Ways to recover from a damaged store.json."""


class StoredRun:
    """The run `name` in the store at `address`; `directory` contains its files.

    A run of `world` in this process's memory shares its data with its worker.
    """

    def __init__(
        self, address: str, directory: RunDirectory | None, name: str, world: World
    ) -> None:
        self.address, self.name, self._directory, self._world = address, name, directory, world
        self.shared = address == MEMORY
        self._server = MemoryServer(world.metric) if self.shared else open_server(address)
        self.store: Store = self._server.store(name)

    def info(self) -> RunInfo | None:
        """The run's info; None: it has not begun."""
        return self.store.info() if self.name in self._server.runs() else None

    @property
    def url(self) -> str | None:
        """The store's URL for other processes; None: they cannot reach it."""
        return getattr(self._server, "url", None)

    @property
    def began_s(self) -> float:
        """Unix time at which the run's clock was 0."""
        return float(self.store.info().options["began_s"])

    def checkpoint(self, agents: Sequence[Agent]) -> Checkpoint | None:
        """The state from which the recorder continues; the folder's files hold all earlier steps.

        None if the run has not begun. Raises MetropolisError, and closes the store, if the files
        end before that, or the run has other agents.
        """
        try:
            return self._released(agents)
        except MetropolisError:
            self.close()
            raise

    def _released(self, agents: Sequence[Agent]) -> Checkpoint | None:
        known = self.info()
        if known is None:
            return None
        check_same_agents(known.agents, agents)
        if self._directory is None:
            raise MetropolisError("a run in a store is resumed in its folder; name it with out")
        step = self.store.nodes().released
        entities, events = self.store.world(step)
        if (intact := self._directory.intact_steps) < step:
            raise StoreError(
                f"{self._directory.history}: contains {intact} intact steps, but the store has "
                f"dropped those below {step} already; resume from the last checkpoint, in another "
                "store or with store memory"
            )
        return Checkpoint(step, entities, events, {}, time.time() - self.began_s, None)

    def create(
        self,
        agents: Sequence[Agent],
        seed: int,
        start: Start,
        last_step: Step,
        now_s: float,
        minds: Mapping[AgentId, Any] | None = None,
    ) -> None:
        """Put the run into the store, unless it is there; all agents are at the step of `start`.

        `now_s` is the time of the run's clock. `minds`: what the store is to read as the minds of a
        shared run; None: the agents themselves. Raises MetropolisError if an agent is beyond
        `last_step` already.
        """
        if self.info() is None:
            options = {"began_s": time.time() - now_s}
            if not self.shared:
                minds = _saved(agents) if minds is None else dict(minds)
            elif minds is None:
                minds = SavedWhenRead(agents)
            begin_run(self.store, self._world, agents, minds, seed, start, last_step, options)
        elif (newest := max(self.store.nodes().steps)) > last_step:
            raise MetropolisError(
                f"an agent has already reached step {newest} in the run's store, and cannot end at "
                f"{last_step}; resume the run up to {newest} or more, or with store memory"
            )

    def close(self) -> None:
        """Close the connections, and stop an embedded server."""
        self._server.close()


@dataclass(frozen=True)
class Start:
    """The entities and the events that agents can see in `step`, with which a run begins."""

    step: Step
    entities: Sequence[Entity]
    events: Sequence[Event] = ()


def begin_run(
    store: Store,
    world: World,
    agents: Sequence[Agent],
    minds: Mapping[AgentId, Any],
    seed: int,
    start: Start,
    last_step: Step,
    options: Mapping[str, Any],
) -> None:
    """Begin a run in `store`."""
    info = RunInfo(
        world.name,
        seed,
        tuple(agent.name for agent in agents),
        start.step,
        last_step,
        world.metric.name,
        reach_of(world.perception_radius, world.max_velocity),
        world.metric.neighbours if isinstance(world.metric, Hops) else None,
        options,
    )
    store.begin(info, start.entities, minds, start.events)


def _saved(agents: Sequence[Agent]) -> dict[AgentId, Any]:
    """The minds by number; raises MetropolisError if workers would not restore one as it is."""
    return {number: save_checked(agent) for number, agent in enumerate(agents)}


def stored_run(
    configuration: RunConfiguration, directory: RunDirectory | None, virtual: bool, world: World
) -> StoredRun:
    """The run of `world` in the store that `configuration` names.

    Without a name a resumed run uses its previous store, and another one this process's memory;
    in another store it begins at its last checkpoint, unless it is there already. Raises
    MetropolisError on virtual time, which ends with its process, in a store beyond it, and on a
    store that this user has not named, unless they `trust` it.
    """
    recorded, address = _Location(MEMORY, ""), configuration.store
    if configuration.resume and directory is not None and address != MEMORY:
        recorded, distrust = read_location(directory)
        if distrust is not None and not configuration.trust:
            raise MetropolisError(
                f"{distrust}; it names the run {recorded.run!r} in the store "
                f"{recorded.address!r}, which would be given this user's password: name a store "
                'yourself with store="memory", or pass trust=True'
            )
    if address is None:
        address = recorded.address
    if address == MEMORY:
        return StoredRun(MEMORY, directory, MEMORY, world)
    if virtual:
        raise MetropolisError(
            "virtual time ends with its process; a run in a store needs an llm in real time"
        )
    name = recorded.run or uuid.uuid4().hex[:12]
    if directory is not None:
        if not recorded.run:
            name = f"{_UNNAMEABLE.sub('_', directory.root.resolve().name)}-{name}"
        if address == "embedded":
            address = f"embedded:{directory.root.resolve() / 'store'}"
    return StoredRun(with_absolute_files(address), directory, name, world)


def note_location(stored: StoredRun, directory: RunDirectory | None) -> None:
    """Write into the run's folder where it is stored; the journal's lock excludes others."""
    if directory is None:
        return
    if stored.address == MEMORY:
        _location_file(directory).unlink(missing_ok=True)
    else:
        address = portable_address(stored.address, directory.root)
        _write_location(directory, _Location(address, stored.name))


def portable_address(address: str, run: Path) -> str:
    """`address` as stored in the files of the run in folder `run`: without a password.

    The folder of an embedded store becomes relative to `run` if it lies within, so that both can be
    moved and copied together; otherwise it becomes absolute, as do the file of an own store and the
    files that TLS needs.
    """
    if is_own_store(address):
        return f"{Path(address).resolve()}"
    kind, _, folder = address.partition(":")
    if kind != "embedded" or not folder:
        return without_secrets(with_absolute_files(address))
    absolute, home = Path(folder).resolve(), run.resolve()
    return f"embedded:{absolute.relative_to(home) if absolute.is_relative_to(home) else absolute}"


def resolve_address(kept: str, run: Path) -> str:
    """The inverse of `portable_address`, for the current location of `run`."""
    kind, _, folder = kept.partition(":")
    return f"embedded:{run.resolve() / folder}" if kind == "embedded" and folder else kept


@dataclass(frozen=True)
class _Location:
    address: str
    run: str
    """The name of the run in the store."""


def read_location(directory: RunDirectory) -> tuple[_Location, str | None]:
    """The location of the store of the run in `directory`, and the reason to distrust it, if any.

    Raises MetropolisError if the file is damaged.
    """
    file = _location_file(directory)
    if not file.exists():
        return _Location(MEMORY, ""), None
    recorded = read_object(file, _RECOVERY)
    try:
        location = msgspec.convert(recorded, _Location)
        found = distrust_reason(file.name, _signed(directory, location), recorded.get("signature"))
    except ValueError as error:
        raise MetropolisError(
            f"{file}: should contain the address of a store and the name of a run there ({error})"
        ) from error
    location = replace(location, address=resolve_address(location.address, directory.root))
    return location, found and f"{file}: {found}"


def _write_location(directory: RunDirectory, location: _Location) -> None:
    signature = sign(_location_file(directory).name, _signed(directory, location))
    write_object(_location_file(directory), {**asdict(location), "signature": signature})


def _signed(directory: RunDirectory, location: _Location) -> dict[str, str | None]:
    """The signed content; includes the run's id, so that it is not valid for another run."""
    return {**asdict(location), "of": directory.run}


def _location_file(directory: RunDirectory) -> Path:
    return directory.root / "store.json"
