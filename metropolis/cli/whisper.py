"""`metropolis whisper`: a branch in which an inner voice gives an agent a thought."""

from __future__ import annotations

from typing import Any

import click

from metropolis.cli.fork import AT, OF_BRANCH, run_branch
from metropolis.cli.resume import later_options
from metropolis.runtime.reruns.whisper import Whisper
from metropolis.types import Step


def _whisper(run: str, text: str, agent: str, at: Step, **given: Any) -> int:
    """Start a branch of RUN at STEP in which an agent has the thought TEXT; run it to its end.

    The agent takes TEXT for a thought of its own. Otherwise the branch is as in metropolis fork.
    """
    whisper = Whisper(agent, text)
    return run_branch(run, at, lambda: whisper, **given)


command = click.Command(
    "whisper",
    params=[
        click.Argument(["run"]),
        click.Argument(["text"]),
        click.Option(["--agent"], metavar="NAME", required=True, help="The agent that hears it."),
        AT,
        *OF_BRANCH,
        *later_options(),
    ],
    callback=_whisper,
    help=_whisper.__doc__,
)
