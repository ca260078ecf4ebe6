"""The API reference is built from docstrings, and the links of the docs lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import metropolis

ROOT = Path(__file__).parent.parent
API = (ROOT / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pages that the documented command writes; it has nothing to say."""
    command = re.search(r"`pdoc (.*?) -o api`", API)
    assert command is not None
    folder = tmp_path_factory.mktemp("reference")
    built = subprocess.run(
        # Colouring the sources takes half of its time, and the tests read none.
        [sys.executable, "-P", "-m", "pdoc", *command[1].split(), "--no-show-source", "-o", "api"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "api"


def is_explained(reference: Path, module: str, name: str) -> bool:
    """Whether it is there with its docstring, as the class or function that it is."""
    page = (reference / f"{module.replace('.', '/')}.html").read_text()
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    shown = r'<div class="attr (class|function|variable)">.*<div class="docstring"><p>'
    return found is not None and re.search(shown, found[0], re.DOTALL) is not None


def test_the_api_reference_explains_every_public_name(reference: Path) -> None:
    for name in metropolis._PUBLIC:
        what = getattr(metropolis, name)
        of = getattr(what, "__name__", None)
        module = "metropolis" if of == name else what.__module__  # a value, or another name for it
        assert is_explained(reference, module, of or name), name


def test_what_the_guide_to_the_reference_names_is_there(reference: Path) -> None:
    named = re.findall(r"`(metropolis\.[\w.]+)`", API)
    assert "metropolis.Simulation" in named
    for name in named:
        module, _, member = name.rpartition(".")
        is_module = (reference / f"{name.replace('.', '/')}.html").exists()
        is_public = module == "metropolis" and member in metropolis._PUBLIC
        assert is_module or is_public or is_explained(reference, module, member), name


def slug(heading: str) -> str:
    """A heading as GitHub spells it in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """What the part of a link after `#` may be: ids and headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {*map(slug, headings), *re.findall(r'<a id="([^"]+)">', text)}


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def sections(page: str) -> dict[str, str]:
    """The page in docs and its sections, by slug; numbers have no commas."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", (ROOT / "docs" / page).read_text())
    found = [text.removeprefix("# "), *re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    return {slug(of.split("\n")[0]): of for of in found}


def test_results_at_a_glance_are_those_of_their_sections() -> None:
    rows = sections("results.md")["at-a-glance"].split("\n|")[3:]
    assert len(rows) > 10
    for row in rows:
        question, answer, comparison, links, *_ = row.split("|")
        named = re.findall(r"\(([^)]+)#([^)]+)\)", links)
        section = "".join(sections(page)[name] for page, name in named)
        known = set(re.findall(r"\d+(?:\.\d+)?", section))
        for number in re.findall(r"\d+(?:\.\d+)?", answer + comparison):
            assert number in known, f"{question.strip()} {number}"
