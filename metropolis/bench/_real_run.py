"""Real serving runs: files with one row per request, and the metrics of their requests."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metropolis._core import Profile, simulate
from metropolis.sim.options import PoolOptions
from metropolis.trace.importers.files import read_text
from metropolis.types import MetropolisError

COLUMNS = ("queued_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s")
TOKENS_MAX = 2**31 - 1

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A real run: n requests with at least one output token, in order of `queued_s`."""

    path: Path
    row: npt.NDArray[np.int64]
    """Row of the file; 1 is the first below the header."""
    queued_s: Float64
    input_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    first_token_s: Float64
    last_token_s: Float64
    without_output: int
    """Requests omitted because they got no token."""


def read_run(path: Path) -> Run:
    """Read a CSV file, plain or gzipped, with the columns COLUMNS.

    Times are in seconds since the first request was queued. Requests with 0 output tokens were
    never served and are omitted. Raises MetropolisError that names file, row and field of an
    invalid value.
    """
    try:
        lines = list(csv.reader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise MetropolisError(f"{path} is not a CSV file: {error}") from error
    header, *body = [cells for cells in lines if cells] or [[]]
    for column in COLUMNS:
        if (count := header.count(column)) != 1:
            raise MetropolisError(
                f"{path}: the header {'repeats' if count else 'lacks'} the column {column!r}; it "
                f"must hold {', '.join(COLUMNS)}, each once"
            )
    rows: list[tuple[float, ...]] = []
    without_output = 0
    for number, cells in enumerate(body, start=1):
        if len(cells) != len(header):
            raise MetropolisError(
                f"{path}: row {number} has {len(cells)} fields, the header has {len(header)}"
            )
        row = _parse_row(path, number, dict(zip(header, cells, strict=True)))
        if row is None:
            without_output += 1
        else:
            rows.append(row)
    if not rows:
        raise MetropolisError(
            f"{path} holds no request that got a token; there is nothing to compare"
        )
    table = np.array(sorted(rows, key=lambda row: (row[1], row[0])))
    return Run(
        path,
        table[:, 0].astype(np.int64),
        table[:, 1],
        table[:, 2].astype(np.int32),
        table[:, 3].astype(np.int32),
        table[:, 4],
        table[:, 5],
        without_output,
    )


def _parse_row(path: Path, number: int, cells: dict[str, str]) -> tuple[float, ...] | None:
    def fail(field: str, wanted: str) -> MetropolisError:
        return MetropolisError(
            f"{path}: row {number}, field {field!r} is {cells[field]!r}, but must be {wanted}"
        )

    def seconds(field: str, least: float, least_field: str) -> float:
        try:
            value = float(cells[field])
        except ValueError:
            raise fail(field, "a number of seconds") from None
        if not isfinite(value):
            raise fail(field, "a finite number of seconds")
        if value < least:
            raise fail(field, f"at least {least_field}, which is {least}")
        return value

    def tokens(field: str, least: int) -> int:
        try:
            value = float(cells[field])
        except ValueError:
            raise fail(field, "a number of tokens") from None
        if not (least <= value <= TOKENS_MAX and value.is_integer()):
            raise fail(field, f"a whole number of tokens, at least {least}")
        return int(value)

    queued_s = seconds("queued_s", 0, "the time of the first request")
    output_tokens = tokens("output_tokens", 0)
    input_tokens = tokens("input_tokens", 1)
    if output_tokens == 0:
        return None
    first_token_s = seconds("first_token_s", queued_s, "queued_s")
    last_token_s = seconds("last_token_s", first_token_s, "first_token_s")
    return (number, queued_s, input_tokens, output_tokens, first_token_s, last_token_s)


def request_metrics(run: Run, first_s: Float64, last_s: Float64) -> dict[str, Float64]:
    """Seconds by metric, a value per request.

    ttft: first token - queued; tpot: (last - first) / (output - 1), for requests with more than
    one token; latency: last - queued.
    """
    several = run.output_tokens > 1
    return {
        "ttft": first_s - run.queued_s,
        "tpot": (last_s - first_s)[several] / (run.output_tokens[several] - 1),
        "latency": last_s - run.queued_s,
    }


def simulate_run(
    run: Run, profile: Profile, options: PoolOptions
) -> tuple[dict[str, Float64], int]:
    """Simulate the requests on one instance; return `request_metrics` and the preemptions.

    Raises MetropolisError that names the row of a request that the KV memory cannot hold.
    """
    kv_tokens = run.input_tokens.astype(np.int64) + run.output_tokens - 1
    capacity = profile.kv_capacity_tokens // profile.block_tokens * profile.block_tokens
    if (too_large := kv_tokens > capacity).any():
        i = int(np.argmax(too_large))
        raise MetropolisError(
            f"{run.path}: row {run.row[i]}, fields 'input_tokens' and 'output_tokens' need "
            f"{kv_tokens[i]} KV tokens, but the instance holds {capacity}"
        )
    tokens = run.input_tokens, run.output_tokens
    simulated = simulate(profile, run.queued_s, *tokens, **asdict(options))
    metrics = request_metrics(run, simulated["first_token_sim_s"], simulated["last_token_sim_s"])
    return metrics, simulated["preemptions"]
