"""The page of a run that goes on in this process: `metropolis run --view`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import click

from metropolis.runtime.live.result import INTERRUPTED
from metropolis.runtime.live.simulation import Simulation
from metropolis.types import MetropolisError
from metropolis.viewer.browser import open_browser
from metropolis.viewer.run_viewer import RunViewer


def check_viewer() -> None:
    """Raise MetropolisError if the viewer's dependencies are not installed."""
    if find_spec("aiohttp") is None:
        raise MetropolisError("the viewer needs aiohttp: pip install 'metropolis[viewer]'")


@contextmanager
def shown(simulation: Simulation, folder: Path) -> Iterator[None]:
    """Show the run in a page; in a terminal the page stays after the run's end, until Ctrl-C."""
    viewer = RunViewer(simulation, folder, _announce)
    try:
        yield
        viewer.end()
        if sys.stderr.isatty() and simulation.stopped != INTERRUPTED:
            click.echo("metropolis: the page is still open; Ctrl-C closes it", err=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    finally:
        viewer.close()


def _announce(found: str, is_url: bool) -> None:
    click.echo(f"metropolis: {'see the run at ' if is_url else ''}{found}", err=True)
    if is_url and sys.stderr.isatty():
        open_browser(found)
