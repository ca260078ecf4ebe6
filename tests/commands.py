"""`metropolis` in the process of a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """A command that has ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> str:
        """The output of a command that has succeeded."""
        assert self.status == 0, self
        return self.out

    @property
    def refusal(self) -> str:
        """The error of a command that has refused its input."""
        assert self.status == 2, self
        return self.err


Command = Callable[..., Ended]
"""Takes the words of a command."""


@pytest.fixture
def metropolis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `metropolis` with these words."""
    from metropolis.cli import main  # few tests need it

    def running(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["metropolis", *map(str, words)])
        with pytest.raises(SystemExit) as exited:
            main()
        return Ended(int(exited.value.code or 0), *capsys.readouterr())

    return running
