"""The example of docs/llm.md runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "llm.md").read_text(), re.DOTALL)
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    place, usage = result.stdout.splitlines()
    assert place in ("café", "park")
    assert usage.startswith("Usage(calls=1, ")
