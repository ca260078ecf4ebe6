"""`metropolis export`: runs for other programs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import click

from metropolis.cli.run_folders import run_folder
from metropolis.cli.terminal import without_controls
from metropolis.command_options import OutputFolder
from metropolis.durable import reported
from metropolis.export.genagent import GenAgentExport
from metropolis.export.lanes import lanes_of
from metropolis.export.perfetto import write_perfetto
from metropolis.progress import progress_bar
from metropolis.trace.parquet import check_target

FILE = "perfetto.json.gz"
BUFFER_BYTES = 1 << 20
GZIP_LEVEL = 5


@click.group(name="export")
def command() -> None:
    """Write what happened in a run for other programs."""


@command.command("perfetto")
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"The file to write, compressed if its name ends in .gz. [default: {FILE} in RUN]",
)
def perfetto(run: str, out: Path | None) -> None:
    """Write the timeline of RUN for ui.perfetto.dev and chrome://tracing.

    RUN is a run's folder, its name under runs/, or a folder of `metropolis replay --record`.
    """
    folder = run_folder(run)
    lanes = lanes_of(folder)
    target = check_target(folder / FILE if out is None else out)
    rows = sum(len(lane.timeline.executions) + len(lane.timeline.calls) for lane in lanes)
    with _replacing(target) as file, progress_bar(rows, "rows") as (advance, _):
        write_perfetto(file, lanes, advance)
    click.echo(f"wrote {out or target} ({target.stat().st_size / 1e6:.1f} MB)")
    for lane in lanes:
        if lane.timeline.damage is not None:
            click.echo(f"warning: {without_controls(lane.timeline.damage)}", err=True)


@command.command("genagent")
@click.argument("run")
@click.option("--out", type=OutputFolder(), required=True, help="The folder to write.")
def genagent(run: str, out: Path) -> None:
    """Write RUN as a simulation that the viewer of Generative Agents replays.

    RUN is a run's folder or its name under runs/; it is only read, and its world must have a grid
    map. The viewer counts steps from midnight: before the run's first step nobody moves.
    """
    export = GenAgentExport(run_folder(run))
    with progress_bar(export.steps, "steps") as (advance, _):
        written = export.write(out, advance)
    first, name = written.first_step, out.resolve().name
    click.echo(
        f"{out}: {written.agents} agents, steps 0 to {written.steps - 1}; the run begins at step "
        f"{first}\nIn a checkout's environment/frontend_server, copy it to storage/{name} and "
        f"compressed_storage/{name}; its server then shows /replay/{name}/{first}/ and "
        f"/demo/{name}/{first}/3/"
    )


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end, unless an error occurs."""
    partial = path.with_name(f".{path.name}.partial")
    with reported(path):
        partial.unlink(missing_ok=True)  # left by a killed process, or a link
        try:
            with io.BufferedWriter(_opened(path, partial), BUFFER_BYTES) as file:
                yield cast(BinaryIO, file)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _opened(path: Path, partial: Path) -> io.RawIOBase:
    if path.suffix == ".gz":
        return cast(io.RawIOBase, gzip.GzipFile(partial, "xb", GZIP_LEVEL, mtime=0))
    return io.FileIO(partial, "x")
