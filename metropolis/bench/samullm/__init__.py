"""`metropolis bench samullm`: plans of multi-LLM applications, beside SamuLLM's figures.

All sections are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
from rich.console import Console

from metropolis.bench._sections import Rows, Section, run_sections, section_options, seeded_runs
from metropolis.bench.samullm import ablation, absolute, optimum, settings, society
from metropolis.bench.samullm.summary import show_summary

SECTIONS: dict[str, Section] = {
    **settings.SECTIONS,
    "ablation": ablation,
    "absolute": absolute,
    "optimum": optimum,
    "society": society,
}


@click.command("samullm")
@section_options(SECTIONS)
def command(only: tuple[str, ...], quick: bool, seed: int, as_json: bool) -> None:
    """Compare plans for several models on 8 GPUs, as in SamuLLM's experiments (simulated).

    A plan is made for one draw of output lengths. Its runs have other draws and other speeds.
    Search times are measured. What the paper leaves open is assumed (docs/results/samullm.md).
    """
    run_sections(seeded_runs(SECTIONS, quick, seed), only, quick, seed, as_json, _show_summary)


def _show_summary(found: Mapping[str, Rows], console: Console) -> None:
    show_summary([row for name in settings.SECTIONS for row in found.get(name, [])], console)
