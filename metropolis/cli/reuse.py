"""`metropolis reuse`: plans of which layers a model recomputes."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich import box
from rich.table import Table

from metropolis.cli.serve_torch import NamedModel
from metropolis.cli.terminal import printable
from metropolis.command_options import Number, OutputFolder
from metropolis.reuse.plan import Plan, PlanPoint, load_plan, write_plan
from metropolis.runtime.replays.plots import prepare_figures
from metropolis.tables import plain_console, print_whole
from metropolis.torch_engine.plots import write_profile_figures
from metropolis.torch_engine.quality import METRICS
from metropolis.trace.parquet import check_target
from metropolis.types import MetropolisError


@click.group("reuse")
def command() -> None:
    """Make and show plans of cache reuse between models."""


@command.command("show")
@click.argument("path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: Path, as_json: bool) -> None:
    """Print a plan, after checking it."""
    plan = load_plan(path)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan)))
    else:
        print_plan(plan)


@command.command("profile")
@click.option(
    "--sender", type=NamedModel(), required=True, metavar="[NAME=]FOLDER",
    help="The model whose caches are reused, in the format of Hugging Face.",
)  # fmt: skip
@click.option(
    "--receiver", type=NamedModel(), required=True, metavar="[NAME=]FOLDER",
    help="The model that reuses them, of the same shape and tokens.",
)  # fmt: skip
@click.option(
    "--data", required=True, type=click.Path(path_type=Path),
    help='Examples, one a line: {"context": text, "question": text, "answer": text}.',
)  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The plan file.")
@click.option(
    "--metric", type=click.Choice(list(METRICS)), default="exact_match", show_default=True,
    help="Measure of the quality of answers.",
)  # fmt: skip
@click.option(
    "--loss", type=Number(0, 1), default=0.02, show_default=True,
    help="Maximum loss of quality of the point that is recommended as the fastest.",
)  # fmt: skip
@click.option("--device", default="cpu", show_default=True, help="Device: cpu or cuda.")
@click.option("--figures", type=OutputFolder(), help="A folder for figures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(
    sender: tuple[str, Path], receiver: tuple[str, Path], data: Path, out: Path, metric: str,
    loss: float, device: str, figures: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure quality and prefill time by the layers recomputed, and write a plan.

    Every contiguous band of layers is evaluated; with many layers, those near the best ones.
    """
    check_target(out, data, sender[1], receiver[1])
    try:
        from metropolis.torch_engine.examples import load_examples, tokenize
        from metropolis.torch_engine.model import require_variants
        from metropolis.torch_engine.profiling import profile as measure
        from metropolis.torch_engine.weights import load_model
    except ImportError as missing:
        raise MetropolisError(
            f"profiles need {missing.name}: pip install 'metropolis[torch]'"
        ) from None
    if sender[0] == receiver[0]:
        raise MetropolisError(
            f"sender and receiver are both named {sender[0]!r}; name one of them, NAME=FOLDER"
        )
    if figures is not None:
        prepare_figures(figures)
    examples = load_examples(data)
    one, other = load_model(*sender, device), load_model(*receiver, device)
    require_variants([one, other])
    questions = tokenize(examples, one, other, str(data))
    found = measure(one, other, questions, metric, data.name)
    write_plan(found.plan, out)
    if figures is not None:
        write_profile_figures(figures, found)
    fastest = found.plan.fastest(loss)
    if as_json:
        report = {
            "plan": found.plan,
            "fastest": fastest,
            "points": found.points,
            "differences": [each._asdict() for each in found.differences],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(report)))
        return
    print_plan(found.plan)
    click.echo(printable(_sentence(fastest, loss)))


def _sentence(fastest: PlanPoint | None, loss: float) -> str:
    if fastest is None:
        return f"No point loses at most {loss:g}."
    layers = ", ".join(map(str, fastest.recompute)) or "none"
    return (
        f"The fastest that loses at most {loss:g}: recompute {layers}, prefill "
        f"{fastest.prefill_share:.3f} of all layers' time."
    )


def print_plan(plan: Plan) -> None:
    """Print the points of a plan as a table."""
    table = Table(
        "recomputed layers", box=box.SIMPLE_HEAD,
        title=printable(f"{plan.receiver} from {plan.sender}'s cache, {plan.layers} layers"),
    )  # fmt: skip
    for name in ("of all", plan.metric, "lost", "prefill", "faster"):
        table.add_column(printable(name), justify="right")
    for point in plan.points:
        layers = sum(map(len, point.recompute))
        share = point.prefill_share
        table.add_row(
            ", ".join(map(str, point.recompute)) or "none",
            f"{layers / plan.layers:.0%}",
            f"{point.quality:.3f}",
            f"{plan.receiver_quality - point.quality:.3f}",
            f"{share:.3f}",
            f"{1 / share:.2f}x" if share else "–",
        )
    console = plain_console()
    print_whole(table, console)
    sender = "unknown" if plan.sender_quality is None else f"{plan.sender_quality:.3f}"
    qualities = f"receiver {plan.receiver_quality:.3f}, sender {sender}"
    measured = f"{plan.metric} on {plan.data}; prefill of {plan.prompt_tokens:,} tokens"
    console.print(printable(f"{qualities} ({measured}); {plan.source}"))
