"""An application as a TOML file; docs/plan.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from metropolis._core import Profile
from metropolis.names import check_name
from metropolis.plan.application import Application, ApplicationError, Node
from metropolis.plan.lengths import (
    LengthDistribution,
    Lengths,
    lengths_for,
    lengths_of_journal,
    lengths_of_trace,
    read_lengths,
)
from metropolis.plan.machine import EngineOverhead, LoadingTime, Machine, Seconds
from metropolis.plan.sources import Traces, items_of
from metropolis.plan.toml_table import Table
from metropolis.plan.workload import Columns, Workload, columns_of, drawn
from metropolis.sim.architecture import Architecture, architectures
from metropolis.sim.profiles import load_profile


class EngineTable(msgspec.Struct, frozen=True):
    """How the engines of a model are started (`metropolis.plan.running`)."""

    command: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class LoadedApplication:
    """What an application's file describes."""

    file: Path
    application: Application
    lengths: Lengths
    machine: Machine
    engines: Mapping[str, EngineTable]
    """Model -> its table `[engines.MODEL]`."""
    files: Sequence[Path]
    """All that were read."""

    @cached_property
    def _columns(self) -> Columns:
        return columns_of(self.application)

    def workload(self, *seeds: int) -> Workload:
        """Its requests; the seeds determine the lengths that are not known.

        Raises ApplicationError if a prompt leaves no room in the context of its model.
        """
        random = np.random.default_rng(seeds)
        try:
            return drawn(self._columns, self.lengths, self.machine.shapes, random)
        except ApplicationError as error:
            raise ApplicationError(f"{self.file}: {error}") from error


class _Head(msgspec.Struct):
    name: str


class _FileLengths(msgspec.Struct):
    file: str
    name: str | None = None


class _TraceLengths(msgspec.Struct):
    trace: str
    model: str | None = None
    function: str | None = None


class _JournalLengths(msgspec.Struct):
    journal: str
    function: str


class _GivenLengths(msgspec.Struct):
    values: list[int]


class _NodeTable(msgspec.Struct):
    """The fields of Node, with one input as a text."""

    model: str
    inputs: str | tuple[str, ...]
    template: str | None = None
    join: Literal["concatenate", "each"] = "concatenate"
    chain: bool = False
    results: Literal["last", "all"] = "last"
    times: int = 1
    max_tokens: int | None = None
    lengths: str | None = None


class _MachineHead(msgspec.Struct):
    gpus: int = 8
    gpu: str = "a100-80g"
    tp_max: int = 8


def read_application(path: Path) -> LoadedApplication:
    """The application in a file.

    Raises MetropolisError on any fault, in a sentence that names the file, the table and the field.
    """
    top, traces = Table.of_file(path), Traces()
    sources, nodes, lengths, models, engines = (
        top.take_all(each) for each in ("sources", "nodes", "lengths", "models", "engines")
    )
    machine_table, head = top.take("machine"), top.read(_Head)
    machine = _machine(machine_table, models)
    items = {name: items_of(table, traces) for name, table in sources.items()}
    made = tuple(_node(name, table, machine) for name, table in nodes.items())
    with top.located():
        application = Application(head.name, items, made)
    loaded = LoadedApplication(
        path,
        application,
        {name: _lengths(name, table, traces) for name, table in lengths.items()},
        machine,
        {name: table.read(EngineTable) for name, table in engines.items()},
        top.files,
    )
    for name, table in engines.items():
        with table.located():
            check_name("model of this application", name, application.models)
    _check_lengths(loaded, nodes)
    return loaded


def _node(name: str, table: Table, machine: Machine) -> Node:
    node = table.read(_NodeTable)
    with table.located("model"):
        machine.plans(node.model)
    inputs = (node.inputs,) if isinstance(node.inputs, str) else node.inputs
    return Node(name, **{**msgspec.structs.asdict(node), "inputs": inputs})


def _check_lengths(loaded: LoadedApplication, nodes: Mapping[str, Table]) -> None:
    """Every request's length is known, or can be drawn."""
    for name, requests in loaded.application.requests().items():
        node, table = loaded.application.node(name), nodes[name]
        if any(request.output_tokens is None for request in requests):
            with table.located("lengths"):
                lengths_for(loaded.lengths, node.lengths or node.model, "no output_tokens")


def _lengths(name: str, table: Table, traces: Traces) -> LengthDistribution:
    kinds = {
        "file": _FileLengths,
        "trace": _TraceLengths,
        "journal": _JournalLengths,
        "values": _GivenLengths,
    }
    match table.read_one_of(kinds):
        case _GivenLengths(values):
            with table.located("values"):
                return LengthDistribution.of(values)
        case _FileLengths(file, chosen):
            path = table.existing(file, "file")
            with table.located("file"):
                return lengths_for(read_lengths(path), chosen or name, file)
        case _JournalLengths(journal, function):
            path = table.existing(journal, "journal")
            with table.located("journal"):
                return lengths_for(lengths_of_journal(path), f":{function}", journal)
        case _TraceLengths(trace, model, function):
            if not (model or function):
                raise table.error("lacks model, function or both, which select calls of the trace")
            path = table.existing(trace, "trace")
            with table.located("trace"):
                chosen = f"{model or ''}{f':{function}' if function else ''}"
                return lengths_for(lengths_of_trace(traces[path]), chosen, trace)
    raise AssertionError(name)


def _machine(table: Table, models: Mapping[str, Table]) -> Machine:
    loading = table.take("loading").read(LoadingTime)
    loading_s = table.take("loading_s")
    overhead = table.take("overhead").read(EngineOverhead)
    head = table.read(_MachineHead)
    shapes, profiles = dict(architectures()), dict[tuple[str, int], Profile]()
    for name, model in models.items():
        profiles |= {(name, tp): each for tp, each in _profiles(model.take("profiles")).items()}
        if model or name not in shapes:
            shapes[name] = model.read(Architecture)
    measured_s = _loading_s(loading_s, shapes)
    with table.located():
        return Machine(
            **msgspec.structs.asdict(head),
            shapes=shapes,
            profiles=profiles,
            loading=loading,
            loading_s=measured_s,
            overhead=overhead,
        )


def _profiles(table: Table) -> dict[int, Profile]:
    """The profiles of a model by tensor parallelism."""
    found = {}
    for field, name in table.read_all(str).items():
        if not re.fullmatch(r"[1-9]\d?", field):
            raise table.error("should be a number of GPUs, the degree of tensor parallelism", field)
        with table.located(field):
            is_file, path = ".toml" in name, f"{table.path.parent / name}"
            found[int(field)] = load_profile(path if is_file else name)
            if is_file:
                table.files.append(Path(f"{path.rpartition('.toml')[0]}.toml"))
    return found


def _loading_s(table: Table, shapes: Mapping[str, Architecture]) -> dict[tuple[str, int], float]:
    found = {}
    for field, seconds in table.read_all(Seconds).items():
        match = re.fullmatch(r"(.+) tp([1-9]\d?)", field)
        if match is None:
            raise table.error('should be a model and a TP degree, like "vicuna-13b tp2"', field)
        with table.located(field):
            check_name("model", match[1], shapes)
        found[match[1], int(match[2])] = seconds
    return found
