"""Runs cases FIRST to FIRST + COUNT against an extension: python -m tests.core.child ...

The file PROGRESS contains the number of the current case, in case this process dies.
Prints a JSON object: findings as [case, text], and the public names that have answered.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import resource
import sys
import warnings
from pathlib import Path

import numpy as np

from .cases import CASES, public_names
from .draw import Draw, FindingError, RefusedError
from .speculation_cases import use_speculation, use_speculation_bench

CASE_SECONDS_MAX = 120  # on a busy machine; no case takes two
MEMORY_BYTES_MAX = 4 << 30
VAST_ROWS = (2**45, 2**12)
"""AddressSanitizer ends the process where `new` would raise MemoryError."""


def main(extension: str, first: int, count: int, progress: str, sanitized: bool) -> None:
    spec = importlib.util.spec_from_file_location("metropolis._core", extension)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if not sanitized:  # the shadow memory of AddressSanitizer is larger
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    done: set[str] = set()
    findings: list[tuple[int, str]] = []
    with open(progress, "r+b", buffering=0) as under_way:
        for case in range(first, first + count):
            os.pwrite(under_way.fileno(), b"%20d" % case, 0)
            faulthandler.dump_traceback_later(CASE_SECONDS_MAX, exit=True)
            draw = Draw(core, case, done, VAST_ROWS[sanitized])
            try:
                draw.random.choice((*CASES, use_speculation, use_speculation_bench))(draw)
            except RefusedError:
                continue
            except FindingError as error:
                findings.append((case, str(error)))
    faulthandler.cancel_dump_traceback_later()
    missing = sorted(set(public_names(core)) - done)
    sys.stdout.write(json.dumps({"findings": findings, "missing": missing}))


if __name__ == "__main__":
    path, first, count, progress, sanitized = sys.argv[1:]
    main(path, int(first), int(count), str(Path(progress)), sanitized == "sanitized")
