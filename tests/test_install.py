"""What a newcomer does: the README's first command in a fresh copy; a wheel from the sdist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def readme_commands() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    """The files a clone would have."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so what a clone would hold is not known")
    copy = tmp_path / "clone"
    for name in run("git", "-c", "safe.directory=*", "ls-files", cwd=ROOT).splitlines():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return copy


def test_the_readme_first_command(fresh_copy: Path) -> None:
    output = run("bash", "-euo", "pipefail", "-c", readme_commands()[0], cwd=fresh_copy)
    for mode in ("sequential", "lockstep", "out_of_order", "oracle"):
        assert mode in output


def test_a_wheel_built_from_the_sdist_works_without_the_checkout(
    fresh_copy: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, fresh_copy, cwd=tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/.ci/" in name]
    run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, sdist, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(fresh_copy)
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    metropolis = environment / "bin" / "metropolis"
    trace = tmp_path / "trace.parquet"
    run(metropolis, "trace", "generate", "--hours", "12-12.5", "--out", trace, cwd=tmp_path)
    assert "conservative" in run(metropolis, "replay", trace, cwd=tmp_path)
