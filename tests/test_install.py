"""What a newcomer does: the README's first command, in the sdist of a fresh copy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
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


def blocks(page: str, language: str = "") -> list[str]:
    """The fenced blocks of a page that are in `language`."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.M)
    return [text for of, text in found if of == language]


def readme_commands() -> list[str]:
    return blocks("README.md", "sh")


def samples_of_the_first_run() -> list[str]:
    return [*blocks("README.md")[:2], blocks("docs/smallville.md")[0]]


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


def test_the_readme_first_command_in_the_sdist(
    fresh_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel compiles for a minute: the sdist of a clone runs the command that a clone would.

    The installed package then works without its sources.
    """
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, fresh_copy, cwd=tmp_path)
    shutil.rmtree(fresh_copy)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        assert not [name for name in names if "/.ci/" in name]
        assert any(name.endswith("/metropolis/viewer/page/index.html") for name in names)
    shutil.unpack_archive(sdist, tmp_path)
    sources = tmp_path / sdist.name.removesuffix(".tar.gz")
    monkeypatch.setenv("SKBUILD_CMAKE_BUILD_TYPE", "Debug")  # a quarter of the time is optimising
    output = run("bash", "-euo", "pipefail", "-c", readme_commands()[0], cwd=sources)
    for sample in samples_of_the_first_run():
        assert not set(sample.splitlines()) - set(output.splitlines())
    for path in set(sources.iterdir()) - {sources / ".venv"}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    metropolis = sources / ".venv" / "bin" / "metropolis"
    trace = tmp_path / "trace.parquet"
    run(metropolis, "trace", "generate", "--hours", "12-12.5", "--out", trace, cwd=tmp_path)
    assert "conservative" in run(metropolis, "replay", trace, cwd=tmp_path)
