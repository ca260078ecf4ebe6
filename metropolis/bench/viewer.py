"""Time and memory of the viewer's server: opening, and the slowest chunk of each kind."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from metropolis.bench import need


@click.command(name="viewer")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--beside", help="As for metropolis view.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of a table.")
def command(run: Path, beside: str | None, as_json: bool) -> None:
    """Read every chunk of RUN, a run's folder or a recorded replay, as a page would.

    Real times of this machine, on one core; the memory is the process's, beyond an idle server.
    """
    need("viewer", "aiohttp")
    import metropolis.viewer.server  # noqa: F401 -- its memory is not counted
    from metropolis.viewer.data.opening import open_sides

    idle_mb = _peak_mb()
    rows: dict[str, dict[str, float]] = {}

    def measured(name: str, read: Callable[[], Any]) -> Any:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        found = read()
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        if cpu_s >= rows.get(name, {}).get("cpu_s", 0.0):
            size = len(found) if isinstance(found, bytes) else 0
            rows[name] = {"cpu_s": cpu_s, "wall_s": wall_s, "bytes": size}
        return found

    sides = measured("opening", partial(open_sides, run, beside))
    for side in sides:
        content = json.loads(measured("meta", partial(side.chunk, "meta", "0")))
        wanted = [
            (name, f"{at}") for name, count in content["counts"].items() for at in range(count)
        ]
        wanted += [("ends", "0"), ("bounds", "0"), ("mind", f"0-{content['steps'] // 2}")]
        wanted += [("call", f"{content['calls'] - 1}")] if content["calls"] else []
        for name, number in wanted:
            measured(name, partial(side.chunk, name, number))
    memory_mb = _peak_mb() - idle_mb
    if as_json:
        click.echo(json.dumps({"rows": rows, "memory_mb": memory_mb}, indent=2))
        return
    click.echo(f"{'slowest':<12}{'cpu_s':>8}{'wall_s':>8}{'bytes':>12}")
    for name, row in rows.items():
        click.echo(f"{name:<12}{row['cpu_s']:>8.3f}{row['wall_s']:>8.3f}{row['bytes']:>12,.0f}")
    click.echo(f"memory beyond an idle server: {memory_mb:.0f} MB")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
