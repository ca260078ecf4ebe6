"""The API reference is built from docstrings, and the links of the docs lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import metropolis

ROOT = Path(__file__).parent.parent


def test_the_api_reference_shows_every_public_name(tmp_path: Path) -> None:
    command = re.search(r"`pdoc (.*?) -o api`", (ROOT / "docs" / "api.md").read_text())
    assert command is not None
    built = subprocess.run(
        [sys.executable, "-m", "pdoc", *command[1].split(), "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "Warning" not in built.stderr, built.stderr
    page = (tmp_path / "metropolis.html").read_text()
    for name in metropolis.__all__:
        assert f'id="{name}"' in page, name


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
