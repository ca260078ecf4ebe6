"""`metropolis view`: a local page that shows a run or a replay."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click

from metropolis.cli.host import host_option
from metropolis.cli.run_folders import run_folder
from metropolis.cli.run_view import check_viewer
from metropolis.command_options import on_command_line
from metropolis.durable import reachable
from metropolis.names import check_name
from metropolis.runtime.replays.modes import OUT_OF_ORDER
from metropolis.runtime.replays.recorded_replay import INDEX
from metropolis.trace.parquet import check_target
from metropolis.viewer.browser import open_browser
from metropolis.viewer.data.opening import RACED, open_sides
from metropolis.viewer.data.side import Side
from metropolis.viewer.page_file import write_page


@click.command(name="view")
@click.argument("run")
@click.option(
    "--beside",
    metavar="RUN|MODE",
    help="Also show another run, such as a fork of RUN; or RUN's own trace replayed in MODE and in "
    f"its own mode ({', '.join(RACED)}; out_of_order is versioned); or, of a recorded replay, the "
    "lane MODE.",
)
@host_option
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen at. [default: any]")
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the page in a browser. [default: if in a terminal]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page and its data, without memories, to one file instead of serving it.",
)
def command(
    run: str, beside: str | None, host: str, port: int | None, opens: bool | None, out: Path | None
) -> None:
    """Show RUN in a local page: a run's folder or its name under runs/, or a recorded replay.

    RUN may still be running: the page follows it. The URL contains a token, without which the
    server gives no data. Ctrl-C ends the server.
    """
    if out is not None:
        for name in [*on_command_line({"host": host, "port": port}), *(["open"] if opens else [])]:
            raise click.UsageError(f"--{name} is for a page that is served; omit it, or --out")
    check_viewer()
    beside = OUT_OF_ORDER.get(beside or "", beside)
    folder = run_folder(run)
    if beside is not None and beside not in RACED and not (folder / INDEX).exists():
        other = run_folder(beside)
        if not reachable(other).exists():
            check_name("run or mode", beside, [*RACED, *OUT_OF_ORDER])
        beside = str(other)
    sides = open_sides(folder, beside)
    if out is None:
        show(sides, host, port or 0, opens=opens)
    else:
        check_target(out)
        if note := write_page(out, sides):
            click.echo(f"metropolis: {note}", err=True)
        click.echo(f"wrote {out}")


def show(
    sides: list[Side], host: str = "127.0.0.1", port: int = 0, *, opens: bool | None = None
) -> None:
    """Serve until Ctrl-C; print the URL, and open it in a browser (None: if in a terminal)."""
    from metropolis.viewer.serving import serve  # this module needs aiohttp

    def say(url: str) -> None:
        click.echo(url)
        if sys.stdout.isatty() if opens is None else opens:
            open_browser(url)

    with suppress(KeyboardInterrupt):
        asyncio.run(serve(sides, host, port, say))
