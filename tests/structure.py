"""Measures of the sources: lines, largest parts, import circles.

`python tests/structure.py [REVISION ...]` prints them for git revisions; default: HEAD.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PACKAGE = "metropolis"
COUNTED = {"metropolis": (".py", ".pyi", ".lua"), "worlds": (".py",), "cpp": (".cpp", ".hpp")}
COUNTED |= {"tests": (".py",), "docs": (".md",)}
OURS = ("metropolis", "worlds", "cpp")
"""Where the largest parts are looked for."""

Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Module name -> file, of the package in `root`; the extension stands as its stub."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py*")):
        if path.suffix in {".py", ".pyi"}:
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph(root: Path) -> Graph:
    """Module -> modules that it imports, also within functions and for type checkers only."""
    modules = modules_of(root)
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            imported = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                imported = [one if one in modules else str(node.module) for one in names]
                if node.module == PACKAGE:
                    imported.append(PACKAGE)
            graph[name].update(one for one in imported if one in modules and one != name)
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """The sets of modules that import each other, directly or through others."""
    reached = {name: _reachable(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in sorted(graph):
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({one for one in reached[name] if name in reached[one]})
    return found


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        for name in graph[open_.pop()] - found:
            found.add(name)
            open_.append(name)
    return found


def definitions(root: Path) -> Iterator[tuple[str, int, str]]:
    """Kind ("class" or "function"), lines, and place of every definition in Python."""
    for top in OURS:
        for path in (root / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    kind = "class" if isinstance(node, ast.ClassDef) else "function"
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    yield kind, lines, f"`{node.name}` in {path.relative_to(root)}"


def measures(root: Path) -> dict[str, str]:
    """Measure -> value, for the sources in `root`."""
    lines = {
        path.relative_to(root): len(path.read_bytes().splitlines())
        for top, suffixes in COUNTED.items()
        for path in (root / top).rglob("*")
        if path.suffix in suffixes
    }
    found = {}
    for top in COUNTED:
        count = sum(n for path, n in lines.items() if path.parts[0] == top)
        found[f"lines in {top}/"] = f"{count:,}"
    sizes = [(n, f"{path}") for path, n in lines.items() if path.parts[0] in OURS]
    found["largest file"] = "{:,}: {}".format(*max(sizes))
    for kind in ("class", "function"):
        found[f"largest {kind}"] = "{:,}: {}".format(
            *max((n, place) for what, n, place in definitions(root) if what == kind)
        )
    cyclic = circles(import_graph(root))
    found["import circles"] = f"{len(cyclic)} of {sum(map(len, cyclic))} modules" if cyclic else "0"
    return found


def checkout(revision: str, folder: Path) -> str:
    """Extract the sources of `revision` into `folder`; return its short name."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return subprocess.run(
        ["git", "rev-parse", "--short", revision],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def main(revisions: list[str]) -> None:
    """Print the measures of `revisions` as a Markdown table."""
    columns = {}
    for revision in revisions:
        with TemporaryDirectory() as folder:
            name = checkout(revision, Path(folder))
            columns[name] = measures(Path(folder))
    rows = [["", *columns]]
    rows += [[what, *(column[what] for column in columns.values())] for what in columns[rows[0][1]]]
    for number, row in enumerate(rows):
        print(f"| {' | '.join(row)} |")  # noqa: T201
        if number == 0:
            print("|" + "---|" * len(row))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or ["HEAD"])
