"""`metropolis reuse`: plans of which layers a model recomputes."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from metropolis.cli.terminal import printable
from metropolis.reuse.plan import Plan, load_plan


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
    console = Console(markup=False, emoji=False)
    console.print(table)
    sender = "unknown" if plan.sender_quality is None else f"{plan.sender_quality:.3f}"
    qualities = f"receiver {plan.receiver_quality:.3f}, sender {sender}"
    measured = f"{plan.metric} on {plan.data}; prefill of {plan.prompt_tokens:,} tokens"
    console.print(printable(f"{qualities} ({measured}); {plan.source}"))
