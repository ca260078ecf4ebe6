"""What `import metropolis` offers, and what it costs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metropolis


def test_every_public_name_is_there() -> None:
    for name in metropolis.__all__:
        assert getattr(metropolis, name) is not None
    assert {*metropolis.__all__, "parallel_env"} == {*metropolis._PUBLIC} <= {*dir(metropolis)}
    with pytest.raises(AttributeError, match="has no attribute 'World2'"):
        metropolis.World2  # noqa: B018


def test_the_package_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "metropolis", "frok"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert found.stderr.startswith("metropolis: there is no command 'frok' (did you mean 'fork'?)")


def test_importing_all_names_needs_no_extra() -> None:
    code = "import sys; sys.modules['pettingzoo'] = None\nfrom metropolis import *\nSimulation"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_type_checkers_see_all_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from metropolis import *\n"
        "made = make_scenario('minimal')\n"
        "for mode in ('lockstep', 'out_of_order'):\n"
        "    Simulation(made.world, made.agents, mode=mode, seed=3)\n"
    )
    assert mypy(script) == ""
    script.write_text(
        "from metropolis import *\n"
        "made = make_scenario('minimal')\n"
        "Simulation(made.world, made.agents, mood=3)\n"
        "Simulation(made.world, made.agents, mode='lockstop')\n"
        "RunConfiguration(rule='oracle')\n"
        "check_world('minimal', seed=3)\n"
        "SingleAgentWorld('minimal', render_mode='human')\n"
    )
    found = re.findall(r"script.py:(\d): error: (.*?) \"(\w+)\"", mypy(script))
    assert found == [
        ("3", "Unexpected keyword argument", "mood"),
        ("4", "Argument", "mode"),
        ("5", "Argument", "rule"),
        ("6", "Unexpected keyword argument", "seed"),
        ("7", "Argument", "render_mode"),
    ]


def mypy(script: Path) -> str:
    """What it says of errors in `script`."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", script],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return "" if checked.returncode == 0 else checked.stdout


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(metropolis.__file__).read_text())
    ifs = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in ifs if isinstance(node.test, ast.Name)]
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


def test_sources_that_hide_the_installed_package_say_so() -> None:
    """Without what is installed, as -S leaves it out; the folder is the clone's."""
    clone = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import metropolis"],
        capture_output=True, text=True, check=False, cwd=clone,
    )  # fmt: skip
    assert found.returncode == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {clone / 'metropolis'} holds only the sources")
    assert last.endswith(
        "start Python in another folder or with -P, or install the clone with pip install -e ."
    )
