"""Section `pair`: a small pair of `examples/droidspeak_pair`, measured beside the paper's pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from metropolis.bench import need
from metropolis.bench.droidspeak.paper import PAIRS
from metropolis.bench.droidspeak.tables import print_table
from metropolis.reuse.plan import Plan

KIND = "measured"
TABLES = ("table_2", "front", "input_overheads", "equality")


def runs(_: bool) -> int:
    """Number of steps that `measure` reports."""
    return len(TABLES)


def measure(
    folder: Path, plan: Plan, quick: bool, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """The rows of all tables, each with the name of its table, as plain data.

    `folder` is one that the example made, and `plan` was made for its models. Raises
    MetropolisError if they do not fit, or torch is missing.
    """
    need("torch", "torch", "transformers")
    from metropolis.bench.droidspeak import pair_measurement

    pair = pair_measurement.open_pair(folder, plan, quick)
    rows = []
    for name in TABLES:
        rows += [{"table": name, **row} for row in getattr(pair_measurement, name)(pair)]
        advance(1)
    return rows


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the tables."""
    for name in TABLES:
        _SHOWN[name]([row for row in rows if row["table"] == name], console)


def _layers(bands: Sequence[Sequence[int]] | None) -> str:
    """The layers of bands; from JSON these are lists."""
    if bands is None:
        return "projections only"
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in bands]
    return ", ".join(parts) or "none"


def _show_table_2(rows: Sequence[dict[str, Any]], console: Console) -> None:
    receiver = next(row["quality"] for row in rows if row["system"] == "receiver")
    lengths = list(rows[-1]["prefill_share"])
    shown = []
    for row in rows:
        reuses = "prefill_share" in row
        shown.append(
            (
                row["system"],
                _layers(row["recompute"]) if reuses else "",
                f"{100 * row['quality']:.1f}",
                f"{100 * (receiver - row['quality']):.1f}" if reuses else "",
                *(
                    f"{1 / row['prefill_share'][length]:.2f}x" if reuses else ""
                    for length in lengths
                ),
            )
        )
    for pair in PAIRS:
        for result in pair.results:
            shown.append(
                (
                    f"paper: {pair.receiver}, {result.dataset}",
                    f"{pair.layers - pair.reused_layers} of {pair.layers}",
                    f"{result.ours_per_cent:.1f}",
                    f"{result.receiver_per_cent - result.ours_per_cent:.1f}",
                    f"{result.speedup:.2f}x",
                    *[""] * (len(lengths) - 1),
                )
            )
    print_table(
        console,
        "Measured: quality on questions that the plan was not made with, in per cent, and prefill "
        "against all layers (Table 2; the paper's rows are printed figures, at its own lengths)",
        [
            "system",
            "recomputed",
            "quality",
            "lost",
            *(f"faster,\n{int(length):,} tokens" for length in lengths),
        ],
        shown,
    )


def _show_front(rows: Sequence[dict[str, Any]], console: Console) -> None:
    print_table(
        console,
        "Measured: the plan's points on questions that it was not made with",
        ["recomputed", "quality\nin the plan", "now", "prefill share\nin the plan", "now"],
        (
            (
                _layers(row["recompute"]),
                f"{row['plan_quality']:.3f}",
                f"{row['quality']:.3f}",
                f"{row['plan_prefill_share']:.3f}",
                f"{row['prefill_share']:.3f}",
            )
            for row in rows
        ),
    )


def _show_input_overheads(rows: Sequence[dict[str, Any]], console: Console) -> None:
    print_table(
        console,
        "Measured: what inputs (E) cost beside KV (Fig. 12); one sequence, copies within memory",
        [
            "system", "tokens", "inputs", "bytes\na token", "of KV", "sender's\nprefill, ms",
            "keeping\nE, ms", "copy of\nKV, ms", "of E,\nms", "projection\nof E, ms",
        ],
        (
            (
                row["system"],
                f"{row['tokens']:,}",
                f"{row['inputs']}",
                f"{row['bytes_per_token']:,}",
                f"{row['relative_to_kv']:.1%}",
                f"{row['sender_prefill_ms']:.1f}",
                f"{row['sender_prefill_keeping_ms']:.1f}",
                f"{row['copy_kv_ms']:.2f}",
                f"{row['copy_inputs_ms']:.2f}",
                "" if row["projection_ms"] is None else f"{row['projection_ms']:.1f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def _show_equality(rows: Sequence[dict[str, Any]], console: Console) -> None:
    print_table(
        console,
        "Measured: the receiver's logits from its own cache, for every band, and by plain prefill",
        ["tokens", "batch", "bands", "equal bitwise", "largest difference", "largest logit"],
        (
            (
                f"{row['tokens']:,}",
                f"{row['batch']}",
                f"{row['bands']}",
                f"{row['equal_bitwise']}",
                f"{row['largest_difference']:.1e}",
                f"{row['largest_logit']:.1f}",
            )
            for row in rows
        ),
    )


_SHOWN = {
    "table_2": _show_table_2,
    "front": _show_front,
    "input_overheads": _show_input_overheads,
    "equality": _show_equality,
}
