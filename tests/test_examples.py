"""Every example runs to its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHORTER = {
    "city_society.py": ["50", "0.2"],
    "smallville_day.py": ["0.2"],
    "smallville_health.py": ["0.2"],
    "whisper_spread.py": ["1", "0.3", "6"],
}
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, example, *SHORTER.get(example.name, ())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
