"""Every example runs to its end."""

from __future__ import annotations

import runpy
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
TAKING_ARGUMENTS = [*SHORTER, "engine_time.py", "fit_profile.py", "genagent_figures.py"]


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


@pytest.mark.parametrize("name", TAKING_ARGUMENTS)
def test_examples_explain_their_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES[0].with_name(name)), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name} [-h]")
