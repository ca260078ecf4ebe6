"""Trust in run folders of other users: show what they name, and require --trust."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import click

from metropolis.addresses import without_secrets
from metropolis.cli.terminal import printable
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.stored import MEMORY, read_location
from metropolis.types import MetropolisError

SHOWN_CHARACTERS = 200
READ_CHARACTERS = 4096
"""Maximum length of a shown text: paths are not longer."""
_HARMLESS = ("mode", "rule", "model", "workers")
"""Options that name no code and no address."""
_WHAT = "these are executed as code, read, or connected to with your API keys and passwords"


def check_trust(
    directory: RunDirectory, about: Mapping[str, Any], changed: Mapping[str, Any], *, trust: bool
) -> None:
    """Show what a folder names if another user wrote it, or if it was changed since.

    `about` holds the options of its run.json, `changed` those given on the command line.
    Raises MetropolisError in that case unless `trust` is set.
    """
    reasons = []
    if directory.distrust is not None:
        reasons.append(f"{directory.root / 'run.json'}: {directory.distrust}")
    named = list(_named(about, changed))
    if changed.get("store", about.get("store")) != MEMORY:
        location, distrust = read_location(directory)
        if distrust is not None:
            reasons.append(distrust)
            named.append(f"store.json {_shown(location.run)} in {_shown(location.address)}")
    if not reasons:
        return
    sentence = f"{'; '.join(reasons)}; it names {', '.join(named) or 'nothing'}: {_WHAT}"
    if not trust:
        raise MetropolisError(f"{sentence}; add --trust if you trust the whole folder")
    click.echo(f"metropolis: {sentence}; --trust is given", err=True)


def _named(about: Mapping[str, Any], changed: Container[str]) -> Iterator[str]:
    for option, value in about.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and option not in changed and option not in _HARMLESS:
                yield f"{printable(option.replace('_', '-'))} {_shown(text)}"


def _shown(text: str) -> str:
    if len(text) > READ_CHARACTERS:
        return f"(a text of {len(text):,} characters)"
    text = without_secrets(text)
    if len(text) > SHOWN_CHARACTERS:  # the end of a path names the file
        half = SHOWN_CHARACTERS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return f"'{printable(text)}'"
