"""Sections `ensembling`, `routing`, `summary`, `mixed`: the paper's settings (Figs. 7 to 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console

from metropolis.bench.droidspeak.tables import print_table
from metropolis.bench.samullm.comparison import DRAWS, compared
from metropolis.bench.samullm.paper import chain_summary, ensembling, mixed, routing
from metropolis.plan.application import Application

METHODS = ("ours", "greedy", "max", "min")


@dataclass(frozen=True)
class Settings:
    """A section that compares methods in several settings."""

    title: str
    applications: Callable[[], Sequence[Application]]
    over_max: str
    """The paper's speedups over the heuristics."""
    over_min: str
    KIND: ClassVar[str] = "simulated"

    def runs(self, quick: bool) -> int:
        """Number of steps that `measure` reports."""
        return 1 if quick else len(self.applications())

    def measure(
        self, quick: bool, seed: int, advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """A row for each setting."""
        settings = self.applications()[: 1 if quick else None]
        return compared(settings, METHODS, seed, 2 if quick else DRAWS, advance)

    def show(self, rows: Sequence[dict[str, Any]], console: Console) -> None:
        """Print the results."""
        print_table(
            console,
            f"Simulated: {self.title}",
            ["setting", "ours", "search", "greedy", "max", "min", "bound", "estimate"],
            [_cells(row) for row in rows],
            "ours in seconds with its search, of which search; others relative to ours. bound: the "
            "duration that ours plans over a lower bound. estimate: mean error of ours. The paper "
            f"over max {self.over_max}, over min {self.over_min} times as fast; here "
            f"{_band(rows, 'max')} and {_band(rows, 'min')}; in inference time "
            f"{_band(rows, 'max', 'inference_ratio')} and {_band(rows, 'min', 'inference_ratio')}.",
        )


def _cells(row: dict[str, Any]) -> list[str]:
    ours = row["methods"]["ours"]
    return [
        row["setting"],
        f"{ours['end_to_end_s']:.0f}",
        f"{ours['search_s']:.1f}",
        *(f"{row['ratio'][method]:.2f}" for method in METHODS[1:]),
        f"{ours['estimate_s'] / row['bound_s']:.2f}",
        f"{100 * ours['error']:.1f} %",
    ]


def _band(rows: Sequence[dict[str, Any]], method: str, kind: str = "ratio") -> str:
    found = [row[kind][method] for row in rows]
    return f"{min(found):.2f} to {max(found):.2f}"


SECTIONS = {
    "ensembling": Settings(
        "LLM ensembling, 9 models (Fig. 7)",
        lambda: [
            ensembling(requests, limit)
            for limit in (256, 512)
            for requests in (1000, 2500, 5000, 7500, 10000)
        ],
        "1.1 to 2.4",
        "1.0 to 1.6",
    ),
    "routing": Settings(
        "LLM routing, 5 models (Fig. 8)",
        lambda: [routing(known=False), routing(known=True)],
        "1.4 to 1.8",
        "1.0 to 1.1",
    ),
    "summary": Settings(
        "chain summary, 2 models (Fig. 11)",
        lambda: [
            *(chain_summary(documents, 4, 900) for documents in (100, 200, 300, 400, 500)),
            *(chain_summary(100, evaluations, 900) for evaluations in (1, 2, 3)),
            *(chain_summary(100, 4, limit) for limit in (100, 300, 500, 700)),
        ],
        "1.0 to 1.3",
        "1.0 to 1.4",
    ),
    "mixed": Settings(
        "chain summary and ensembling at once, 11 models (Fig. 12)",
        lambda: [mixed(documents, 5000, 256) for documents in (100, 200, 300, 400, 500)],
        "1.2 to 1.4",
        "1.2 to 1.4",
    ),
}
