"""Runs hostile cases in separate processes, so that a crash is a finding with its seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROCESS_SECONDS_MAX = 3600


@dataclass
class Fuzzed:
    """The outcome of a range of cases."""

    findings: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    """Public names of which no call has succeeded."""


def fuzz(extension: Path, first: int, count: int, preload: str | None = None) -> Fuzzed:
    """Run the cases; a process that dies is replaced by one that continues after its case.

    `preload`: the libraries that an extension with AddressSanitizer needs before all others.
    """
    result, end, missing = Fuzzed(), first + count, []
    with tempfile.NamedTemporaryFile() as progress:
        while first < end:
            child = _run(extension, first, end - first, Path(progress.name), preload)
            if child.returncode == 0:
                report = json.loads(child.stdout.splitlines()[-1])
                result.findings += [f"case {case}: {text}" for case, text in report["findings"]]
                missing.append(set(report["missing"]))
                break
            case = int(Path(progress.name).read_text())
            result.findings.append(
                f"case {case}: the process ended with {child.returncode}\n{child.stderr[-4000:]}"
            )
            first = case + 1
    result.missing = set.intersection(*missing) if missing else set()
    return result


def _run(
    extension: Path, first: int, count: int, progress: Path, preload: str | None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONMALLOC": "malloc" if preload else "default"}
    if preload:
        environment |= {
            "LD_PRELOAD": preload,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        }
    progress.write_text(f"{first:20d}")
    return subprocess.run(
        [
            *(sys.executable, "-m", "tests.core.child", str(extension), str(first), str(count)),
            *(str(progress), "sanitized" if preload else "plain"),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
