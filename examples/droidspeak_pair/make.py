"""Makes a pair of models: a base, and a variant of it that is fine-tuned on a dialect.

    python examples/droidspeak_pair/make.py DIR [--small] [--seed N]

writes `DIR/base` and `DIR/receiver`, in the format of Hugging Face, and questions about stories in
the dialect, for `metropolis reuse profile` (`DIR/profile.jsonl`) and for a test
(`DIR/test.jsonl`). The base answers questions about plain stories and fails in the dialect.

Recall from a context does not come by itself in small deep models. So a stem of 4 layers learns
it first, from short stories to long ones, then layers that add nothing yet are put before each of
its layers, and all layers are trained. The same seed gives the same models on the same machine.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import click
import torch
from folder import write_examples, write_model
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from training import Lesson, grown, new_network, train

from metropolis.torch_engine.evaluation import own_quality
from metropolis.torch_engine.examples import load_examples, tokenize
from metropolis.torch_engine.quality import exact_match
from metropolis.torch_engine.weights import load_model


class Recipe(NamedTuple):
    """Sizes of the models, their training and their data."""

    width: int
    stem_layers: int
    times: int
    """Number of layers of base and receiver, as a multiple of the stem's."""
    stem: Lesson
    base: Lesson
    receiver: Lesson
    facts: int
    """Number of facts in each context of the data files."""
    contexts: int
    """Number of contexts in profile.jsonl; test.jsonl has twice as many."""


STEM = Lesson("stem", rate=1e-2, first_facts=6, last_facts=80, last_steps=40)
BASE = Lesson("base", rate=5e-3, first_facts=80, last_facts=80, last_steps=50)
RECEIVER = Lesson(
    "receiver", rate=1e-3, first_facts=80, last_facts=80, last_steps=60, dialect=True, muon=False
)
FULL = Recipe(
    width=128, stem_layers=4, times=4, stem=STEM, base=BASE, receiver=RECEIVER, facts=80,
    contexts=16,
)  # fmt: skip
SHORT = {"first_facts": 6, "last_facts": 6, "last_steps": 3, "step_words": 200}
SMALL = Recipe(
    width=32, stem_layers=2, times=2, stem=STEM._replace(**SHORT), base=BASE._replace(**SHORT),
    receiver=RECEIVER._replace(**SHORT), facts=6, contexts=2,
)  # fmt: skip
QUESTIONS = 12
"""Maximum number of questions about each context of the data files."""


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--small", is_flag=True, help="Take seconds, not minutes; the models learn nothing.")
@click.option("--seed", default=0, show_default=True, help="Seed of weights and stories.")
def main(directory: Path, small: bool, seed: int) -> None:
    """Make a pair of models and data files in DIR."""
    recipe = SMALL if small else FULL
    torch.manual_seed(seed)
    chance = torch.Generator().manual_seed(seed)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        stem = new_network(recipe.stem_layers, recipe.width)
        train(stem, recipe.stem, chance, progress)
        base = grown(stem, recipe.times)
        train(base, recipe.base, chance, progress)
        receiver = deepcopy(base)
        train(receiver, recipe.receiver, chance, progress)
    for name, network in (("base", base), ("receiver", receiver)):
        write_model(network, directory / name)
    asked = min(QUESTIONS, recipe.facts)
    for name, contexts in (("profile", recipe.contexts), ("test", 2 * recipe.contexts)):
        write_examples(directory / f"{name}.jsonl", contexts, recipe.facts, asked, chance)
    print_accuracy(directory)


def print_accuracy(directory: Path) -> None:
    """Print how many answers of each model are right, in a table."""
    data = directory / "test.jsonl"
    models = [load_model(name, directory / name) for name in ("base", "receiver")]
    questions = tokenize(load_examples(data), *models, str(data))
    table = Table("model")
    table.add_column("layers", justify="right")
    table.add_column(f"exact match on {data.name}", justify="right")
    for model in models:
        layers = str(model.shape.layers)
        table.add_row(model.name, layers, f"{own_quality(model, questions, exact_match):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
