"""Style that no linter knows: import direction, file length, vocabulary."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import LONGEST, SERVERS
from tests.structure import circles, import_graph

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "metropolis"

# Imports run downwards only: a part may import itself and the parts before it.
PARTS = (
    "types",
    "names",
    "durable",
    "line_file",
    "addresses",
    "progress",
    "tables",
    "process_group",
    "daemon_threads",
    "listening",
    "open_files",
    "_core",
    "notebook",
    "maps",
    "rules",
    "world",
    "trace",
    "llm",
    "policy",
    "dispatch",
    "reuse",
    "scheduler",
    "store",
    "controller",
    "speculation",
    "sim",
    "workers",
    "timeline",
    "runtime",
    "export",
    "gateway",
    "viewer",
    "torch_engine",
    "plan",
    "adapters",
    "command_options",
    "bench",
    "cli",
    "__main__",
)
RUNTIME = ("folder", "replays", "live", "checks", "reruns")
"""The parts of `runtime`, in the same order."""
LINES_MAX = 400
AVOIDED = {"persona", "env", "tick", "round", "done", "manager", "helper", "helpers", "utils"}


def sources(
    *suffixes: str, tops: Sequence[str] = ("metropolis", "cpp", "worlds", "examples", "tests")
) -> list[Path]:
    found = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in suffixes]
    assert found
    return sorted(found)


# One test for all files: with one for each they were two fifths of all tests.
def test_imports_run_downwards() -> None:
    upward: list[str] = []
    for path in sources(".py", ".pyi", tops=["metropolis"]):
        if path == PACKAGE / "__init__.py":
            continue
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py").removesuffix(".pyi")
        assert part in PARTS, f"add {part} to PARTS, in its place"
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: relative import"
                assert node.module != "metropolis", (
                    f"{path}:{node.lineno}: imports the whole package"
                )
                modules = [node.module or ""]
            upward += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {part} imports {module}"
                for module in modules
                if module.startswith("metropolis.")
                and PARTS.index(module.split(".")[1]) > PARTS.index(part)
            ]
    assert upward == []


def test_no_modules_import_each_other() -> None:
    """Also within functions, and for type checkers only."""
    assert circles(import_graph(ROOT)) == []


def test_circles_of_imports_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d", "a"}, "e": set[str]()}
    assert circles(graph) == [{"b", "c"}, {"d"}]


def test_imports_within_runtime_run_downwards() -> None:
    for path in sorted((PACKAGE / "runtime").glob("*/*.py")):
        part = path.parent.name
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "metropolis.runtime."
            ):
                imported = (node.module or "").split(".")[2]
                assert RUNTIME.index(imported) <= RUNTIME.index(part), (
                    f"{path.relative_to(ROOT)}:{node.lineno}: {part} imports {imported}"
                )


def test_every_module_of_runtime_is_in_a_part_of_it() -> None:
    loose = [path.name for path in (PACKAGE / "runtime").glob("*.py")]
    assert loose == ["__init__.py"]


def test_files_have_one_subject() -> None:
    lines = {
        str(path.relative_to(ROOT)): path.read_text().count("\n")
        for path in sources(".js", ".css", ".py", ".cpp", ".hpp")
    }
    assert {path: count for path, count in lines.items() if count > LINES_MAX} == {}


def test_names_use_the_vocabulary() -> None:
    avoided: list[str] = []
    for path in sources(".py", tops=["metropolis"]):
        assert path.stem not in AVOIDED, path
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                continue
            words = set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", node.name).lower()))
            # Round robin is the standard term; a round of a simulation is a step.
            is_given = node.name == "RoundRobin" or hasattr(asyncio.Task, node.name)
            if words & AVOIDED and not is_given:
                avoided.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert avoided == []


def test_only_the_bindings_know_pybind11() -> None:
    for path in sources(".cpp", ".hpp"):
        if "bindings" not in path.parts:
            assert "pybind11" not in path.read_text(), path


def test_the_longest_groups_exist() -> None:
    for group in LONGEST:
        assert group in SERVERS.values() or (ROOT / group.partition("::")[0]).exists(), group
