"""Benchmarks, and functions that start their processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from tempfile import TemporaryFile

from metropolis.types import MetropolisError


def python_command(code: str) -> list[str]:
    """Return the command that runs `code` on installed packages, not on this folder's files."""
    return [sys.executable, "-P", "-c", code]


METROPOLIS = python_command("from metropolis.cli import main; main()")
"""The command line interface as a command."""


def need(extra: str, *modules: str) -> None:
    """Raise MetropolisError if one of `modules`, part of `metropolis[extra]`, is missing."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise MetropolisError(
                f"{error}; this benchmark needs it: pip install 'metropolis[{extra}]'"
            ) from None


@contextmanager
def server(start: list[str]) -> Iterator[str]:
    """Run a server in a process; yield the URL that it prints in its first line.

    Raises MetropolisError with the last line of its errors if it ends before that.
    """
    with TemporaryFile("w+") as errors:
        process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            url = re.search(r"http://[\w.:]+(/#token=[\w-]+)?", process.stdout.readline())
            if url is None:
                status = process.wait()
                errors.seek(0)
                last = errors.read().strip().rpartition("\n")[2].removeprefix("metropolis: ")
                raise MetropolisError(last or f"a server ended with status {status} at its start")
            yield url[0]
        finally:
            process.terminate()
            process.communicate()
