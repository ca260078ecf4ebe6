"""How engines are started: command templates."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from metropolis.names import did_you_mean
from metropolis.plan.application_file import EngineTable
from metropolis.types import MetropolisError

KINDS: Mapping[str, str] = {
    "sglang": "metropolis serve sglang --model-path {path} --port {port} -- --tp-size {tp}",
    "torch": "metropolis serve torch --model {model}={path} --port {port}",
    "stub": "metropolis bench stub-server --port {port}",
}
"""Templates by name; a stub answers at once, without a model."""
FIELDS = ("model", "path", "port", "tp", "gpus")
DEVICES = "CUDA_VISIBLE_DEVICES"
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Surrogates stand for bytes that are not UTF-8 (`os.fsdecode`)."""


class EngineCommandError(MetropolisError):
    """A command that cannot start an engine."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command of a model's engines: the name of one of KINDS, or a template.

    A template may contain {model}, {path}: the model's folder or its name on Hugging Face, {port}:
    where the engine listens on 127.0.0.1, {tp}: GPUs of a copy, {gpus}: their numbers. Raises
    EngineCommandError on another field, or without {port}.
    """

    model: str
    template: str
    path: str

    def __post_init__(self) -> None:
        where = f"the engine command of {self.model}"
        if UNWRITABLE.search(self.template + self.model + self.path):
            raise EngineCommandError(
                f"{where} has a NUL character, or the name of a folder that is not UTF-8; remove "
                "or rename it"
            )
        try:
            pieces = [shlex.split(self._text), *Formatter().parse(self._text)]
        except ValueError as error:
            raise EngineCommandError(f"{where}, {self.template!r}: {error}") from error
        fields = [each[1] for each in pieces[1:] if each[1] is not None]
        for field in fields:
            if field not in FIELDS:
                raise EngineCommandError(
                    f"{where} has {{{field}}}{did_you_mean(field, FIELDS)}; it may have "
                    f"{', '.join(f'{{{name}}}' for name in FIELDS)}"
                )
        if any(each[2] or each[3] for each in pieces[1:]):
            raise EngineCommandError(
                f"{where}, {self.template!r}, has a format or conversion in a field; write only "
                "its name, like {port}"
            )
        if "port" not in fields:
            raise EngineCommandError(
                f"{where}, {self.template!r}, lacks {{port}}; write a command like "
                f"{KINDS['sglang']!r}, or one of {', '.join(KINDS)}"
            )

    def arguments(self, port: int, gpus: tuple[int, ...]) -> list[str]:
        """The arguments that start an engine on these GPUs."""
        values = {
            "model": self.model,
            "path": self.path,
            "port": port,
            "tp": len(gpus),
            "gpus": ",".join(map(str, gpus)),
        }
        return [piece.format_map(values) for piece in shlex.split(self._text)]

    @property
    def _text(self) -> str:
        return KINDS.get(self.template, self.template)


def engine_commands(
    models: tuple[str, ...], tables: Mapping[str, EngineTable], folder: Path, command: str | None
) -> dict[str, EngineCommand]:
    """The commands by model, from an application's `[engines.MODEL]` tables in `folder`.

    `command` takes precedence over the tables. Raises EngineCommandError if a model has none.
    """
    found = {}
    for model in models:
        table = tables.get(model, EngineTable())
        template = table.command if command is None else command
        if template is None:
            raise EngineCommandError(
                f"no command starts engines of {model}; write [engines.{model}] with command = "
                f"'sglang', 'torch' or a template, or give --engine-command"
            )
        path = model if table.path is None else table.path
        if (folder / path).exists():
            path = str((folder / path).resolve())
        found[model] = EngineCommand(model, template, path)
    return found


def check_startable(commands: Iterable[EngineCommand], gpus: int) -> None:
    """Raises EngineCommandError if a command has no program, or this process sees fewer GPUs."""
    last = (gpus - 1,)
    path = environment_of(last)["PATH"]
    for command in commands:
        program = command.arguments(0, last)[0]
        if shutil.which(program, path=path) is None:
            raise EngineCommandError(
                f"{program!r}, the command of engines of {command.model}, is not a program on the "
                "PATH; correct the engine command"
            )


def environment_of(gpus: tuple[int, ...]) -> dict[str, str]:
    """The environment of an engine that sees only these GPUs, of those that this process sees.

    `metropolis` is that of the running interpreter. Raises EngineCommandError if this process sees
    too few GPUs.
    """
    visible = os.environ.get(DEVICES)
    names = [name.strip() for name in (visible or "").split(",")]
    if "-1" in names:  # CUDA ignores it and all that follow
        names = names[: names.index("-1")]
    if visible is None:
        devices = ",".join(map(str, gpus))
    elif names in ([], [""]):
        devices = visible  # no GPU: engines on the CPU
    elif max(gpus) < len(names):
        devices = ",".join(names[gpu] for gpu in gpus)
    else:
        raise EngineCommandError(
            f"the application's machine has GPU {max(gpus)}, but {DEVICES}={visible} lists "
            f"{len(names)}; list as many as machine.gpus says, correct that, or unset {DEVICES}"
        )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, DEVICES: devices, "PATH": path}
