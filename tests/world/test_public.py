"""What `import metropolis` offers, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import metropolis


def test_every_public_name_is_there() -> None:
    for name in metropolis.__all__:
        assert getattr(metropolis, name) is not None
    assert set(metropolis.__all__) <= set(dir(metropolis))
    with pytest.raises(AttributeError, match="has no attribute 'World2'"):
        metropolis.World2  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(metropolis.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == metropolis._PUBLIC


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ["gymnasium", "numpy", "pyarrow", "msgspec", "asyncio", "aiohttp", "pettingzoo"]
    code = f"import sys, metropolis; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
