"""`metropolis bench droidspeak`: reuse of other models' caches, beside DroidSpeak's figures.

Every section is a module with the functions of `Section` or `PairSection`; its tables say what is
simulated and what is measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

import click

from metropolis.bench._sections import (
    Advance,
    Rows,
    Section,
    SectionRun,
    ShownSection,
    run_sections,
    section_options,
    seeded_runs,
)
from metropolis.bench.droidspeak import (
    applications,
    division,
    inputs,
    links,
    load,
    pair,
    prefill,
    served,
    smallville,
)
from metropolis.reuse.plan import Plan, load_plan


class PairSection(ShownSection, Protocol):
    """A section that needs the folder of a pair of models and their plan."""

    def measure(self, folder: Path, plan: Plan, quick: bool, advance: Advance) -> Rows:
        """See `Section.measure`."""


SECTIONS: dict[str, Section] = {
    "prefill": prefill,
    "load": load,
    "links": links,
    "division": division,
    "applications": applications,
    "inputs": inputs,
    "smallville": smallville,
}
PAIR_SECTIONS: dict[str, PairSection] = {"pair": pair, "served": served}
PLAN = "plan.json"


@click.command("droidspeak")
@click.option(
    "--pair",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder that examples/droidspeak_pair has made, with its plan in plan.json, for the "
    f"measured sections: {', '.join(PAIR_SECTIONS)}.",
)
@section_options((*SECTIONS, *PAIR_SECTIONS), "all; without --pair the simulated ones")
def command(
    folder: Path | None, only: tuple[str, ...], quick: bool, seed: int, as_json: bool
) -> None:
    """Measure what models gain by starting from another model's cache.

    Simulated sections take the paper's pairs as plans; lengths of programs are estimates. Measured
    sections need a pair: python examples/droidspeak_pair/make.py DIR, then metropolis reuse profile
    --sender DIR/base --receiver DIR/receiver --data DIR/profile.jsonl --out DIR/plan.json.
    """
    if folder is None and (needing := [name for name in only if name in PAIR_SECTIONS]):
        raise click.UsageError(f"--only {needing[0]} measures a pair; name its folder with --pair")
    runs = seeded_runs(SECTIONS, quick, seed)
    if folder is not None:
        plan = load_plan(folder / PLAN)
        for name, section in PAIR_SECTIONS.items():
            runs[name] = SectionRun(section, partial(section.measure, folder, plan, quick))
    run_sections(runs, only, quick, seed, as_json)
