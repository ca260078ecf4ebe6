"""`metropolis view`: a local page that shows a run or a replay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from metropolis.bench import need
from metropolis.cli.run_options import run_folder
from metropolis.viewer.browser import open_browser
from metropolis.viewer.data.opening import RACED, open_sides
from metropolis.viewer.data.side import Side


@click.command(name="view")
@click.argument("run")
@click.option(
    "--beside",
    metavar="RUN|MODE",
    help="Also show another run, such as a fork of RUN; or RUN's own trace replayed in MODE and in "
    f"its own mode ({', '.join(RACED)}); or, of a recorded replay, the lane MODE.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port; 0: a free one. [default: 0]"
)
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the page in a browser. [default: if in a terminal]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page with all its data to this file instead, to be shared.",
)
def command(
    run: str, beside: str | None, host: str, port: int, opens: bool | None, out: Path | None
) -> None:
    """Show RUN in a local page: a run's folder or its name under runs/, or a recorded replay.

    RUN may still be running: the page follows it. The URL contains a token, without which the
    server gives no data. Ctrl-C ends the server.
    """
    need("viewer", "aiohttp")
    if beside is not None and beside not in RACED:
        beside = str(run_folder(beside))
    sides = open_sides(run_folder(run), beside)
    asyncio.run(_serve(sides, host, port, opens=sys.stdout.isatty() if opens is None else opens))


async def _serve(sides: list[Side], host: str, port: int, *, opens: bool) -> None:
    from metropolis.viewer.server import ViewerServer

    server = ViewerServer(sides, host=host)
    url = await server.start(port)
    click.echo(url)
    if opens:
        open_browser(url)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()
