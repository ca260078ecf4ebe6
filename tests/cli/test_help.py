"""What `metropolis --help` and the completion of shells list, and what they import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import click
import pytest
from click.testing import CliRunner

import metropolis.bench
from metropolis.cli import LazyGroup, bench, cli

LISTING = """
import sys
from metropolis.cli import main
try:
    main()
finally:
    groups = "metropolis.cli.", "metropolis.bench"
    print([module for module in sys.modules if module.startswith(groups)])
    print([module for module in ("numpy", "pyarrow", "rich", "asyncio") if module in sys.modules])
"""


def completions(typed: str) -> list[str]:
    """Ask as bash does for what may follow the words `typed`."""
    asking = {
        "_METROPOLIS_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": f"{typed.count(' ')}",
    }
    found = CliRunner().invoke(cli, env=asking, prog_name="metropolis")
    assert (found.exit_code, found.stderr) == (0, "")
    return found.output.split()


@pytest.mark.parametrize("width", [45, 1000])
@pytest.mark.parametrize("group", [cli, bench])
def test_the_list_shows_the_help_of_each_command(group: LazyGroup, width: int) -> None:
    context = click.Context(group)
    for name in group.modules:
        listed, command = group.get_command(context, name), group.imported(name)
        assert listed is not None
        assert listed.get_short_help_str(width) == command.get_short_help_str(width)
        assert listed.hidden == command.hidden


def test_every_public_module_of_benchmarks_is_a_command() -> None:
    names = (module.name.replace("_", "-") for module in iter_modules(metropolis.bench.__path__))
    assert set(bench.modules) == {name for name in names if not name.startswith("-")}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--help"], "  whisper  Start a branch of RUN"),
        (["bench", "--help"], "  kairos            Serve agentic programs"),
    ],
)
def test_the_list_imports_no_command(arguments: list[str], line: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", LISTING, *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert line in shown
    assert shown.splitlines()[-2:] == ["['metropolis.cli.terminal']", "[]"]


def test_the_help_of_a_command_is_its_own() -> None:
    for name, module in cli.modules.items():
        told = CliRunner().invoke(cli, [name, "--help"], prog_name="metropolis")
        command: click.Command = import_module(module).command
        own = CliRunner().invoke(command, ["--help"], prog_name=f"metropolis {name}")
        assert told.output == own.output


def test_shells_complete_commands_and_options() -> None:
    assert completions("metropolis re") == ["plain,replay", "plain,resume", "plain,reuse"]
    assert completions("metropolis run --world-") == ["plain,--world-option"]
    assert completions("metropolis bench kai") == ["plain,kairos"]


def test_completion_of_an_unknown_command_prints_nothing() -> None:
    assert completions("metropolis rnu --world-") == []
