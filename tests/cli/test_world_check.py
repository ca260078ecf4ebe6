"""`metropolis world check`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from metropolis.cli.world_check import check_command
from metropolis.runtime.checks import check_world
from metropolis.types import MetropolisError
from tests.world.planted import SharesADict, yard

ROOT = Path(__file__).parents[2]
CODE = "from metropolis.cli.world_check import check_command; check_command()"


def test_a_sound_world() -> None:
    result = CliRunner().invoke(check_command, ["minimal", "--seeds", "1", "--steps", "6"])
    assert (result.exit_code, result.exception) == (0, None)
    assert result.output == (
        "nothing found in 6 steps for 1 seeds: lockstep four times, once with other hashes of "
        "texts, 3 random schedules under each rule, saved and resumed, and optimistic\n"
    )


SOURCE = """
from tests.world.planted import Yard, yard

class Moody(Yard):
    def observe(self, view):
        words = {"glad", "sad", "mad", "bad", "rad", "tad"}
        return {**super().observe(view), "luck": NUMBER % 5}

def make(*, agents, seed):
    return yard(Moody)
"""


def check(path: Path, code: str = CODE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, f"{path}", "--seeds", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}"},
    )


@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        ("hash('glad')", True),
        ("int(''.join(words).index('glad'))", True),
        ("len(sorted(words)[0])", False),
        ("hash(3)", False),
    ],
)
def test_hashes_of_texts_and_orders_of_sets(number: str, is_found: bool, tmp_path: Path) -> None:
    """They differ between processes, so a run that is resumed would have another history."""
    path = tmp_path / "moody.py"
    path.write_text(SOURCE.replace("NUMBER", number))
    result = check(path)
    assert result.returncode == is_found, result.stderr
    if is_found:
        pattern = (
            "hashes: seed 0, lockstep differs in a process in which texts have other hashes: step "
            r"\d+, .* is .* instead of .*; sort sets before their order matters, and use no "
            r"`hash\(\)` of a text\n"
        )
        assert re.fullmatch(pattern, result.stdout), result.stdout


def test_a_world_that_fails_with_other_hashes(tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    fails = "if os.environ['PYTHONHASHSEED'] != '0':\n    raise ValueError('no luck')\n"
    path.write_text("import os\n" + fails + SOURCE.replace("NUMBER", "1"))
    result = check(path)
    assert result.returncode == 1, result.stderr
    assert re.fullmatch(
        "hashes: seed 0, lockstep fails in a process in which texts have other hashes, and not in "
        "this one: .*moody.py:3: ValueError: no luck.*\n",
        result.stdout,
    ), result.stdout


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("os._exit(0)", "exit status 0"),
        ("import atexit; atexit.register(print, 'bye'); raise ValueError('mad')", ".*mad.*"),
        ("subprocess.Popen(['sleep', '60'])", None),  # the check does not wait for it
        ("input()", ".*EOFError.*"),
    ],
)
def test_a_process_that_goes_wrong(line: str, reason: str | None, tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    head = f"import os, subprocess\nif os.environ['PYTHONHASHSEED'] != '0':\n    {line}\n"
    path.write_text(head + SOURCE.replace("NUMBER", "1"))
    result = check(path)
    assert result.returncode == (reason is not None), result.stdout + result.stderr
    if reason is not None:
        assert re.search(f"and not in this one: {reason}\n", result.stdout), result.stdout


def test_a_beginning_that_depends_on_hashes(tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    kept = """
    def reset(self, *, seed, options):
        sky = Entity("sky", (0, 0), "sky", {"mood": hash("glad")})
        return [*super().reset(seed=seed, options=options), sky]

def make("""
    path.write_text("from metropolis import Entity\n" + SOURCE.replace("\ndef make(", kept))
    path.write_text(path.read_text().replace("NUMBER", "1"))
    result = check(path)
    assert result.returncode == 1, result.stderr
    assert "have other hashes: the beginning, " in result.stdout
    assert "'sky'" in result.stdout


def test_a_world_whose_modules_the_script_has_found(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "numbers_of_mine.py").write_text("NUMBER = 1\n")
    (tmp_path / "lib" / "json.py").touch()  # Python's own comes first in sys.path
    path = tmp_path / "moody.py"
    path.write_text("from numbers_of_mine import NUMBER\n" + SOURCE)
    code = f"import sys; sys.path.append({str(tmp_path / 'lib')!r}); {CODE}"
    result = check(path, code)
    assert result.returncode == 0, result.stdout + result.stderr


def test_an_unsound_world(monkeypatch: pytest.MonkeyPatch) -> None:
    made = lambda name, agents, seed, options: yard(SharesADict)  # noqa: E731
    monkeypatch.setattr(check_world, "make_scenario", made)
    result = CliRunner().invoke(check_command, ["yard", "--seeds", "1"])
    assert result.exit_code == 1
    assert result.output.startswith("state: seed 0, step 0: the world's attribute 'visits' changed")


def test_a_world_that_raises_is_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    path.write_text(SOURCE.replace("NUMBER", "(1 // 0)"))
    code = "import sys; from metropolis.cli import main; sys.argv[1:1] = 'world', 'check'; main()"
    result = check(path, code)
    assert (result.returncode, result.stdout) == (2, "")
    assert "ZeroDivisionError" in result.stderr
    told = CliRunner().invoke(check_command, ["--help"]).output
    assert "and with 2 if an agent or the world raises" in " ".join(told.split())


def test_options_of_a_world(tmp_path: Path) -> None:
    path = tmp_path / "moody.py"
    text = SOURCE.replace("NUMBER", "1").replace("seed):", "seed, kind: str, size: int = 1):")
    path.write_text(text.replace("yard(Moody)", "yard({'moody': Moody}[kind])"))
    few = [f"{path}", "--seeds", "1", "--steps", "4", "--schedules", "1"]
    result = CliRunner().invoke(check_command, few)
    assert f"the world '{path}' needs its option 'kind'; give it with --world-option kind=" in str(
        result.exception
    )
    given = ["--world-option", "kind=moody", "--world-option", "size=3"]
    result = CliRunner().invoke(check_command, [*few, *given])
    assert result.output.startswith("nothing found"), result.output


def test_a_world_that_is_not_there() -> None:
    result = CliRunner().invoke(check_command, ["atlantis"])
    assert isinstance(result.exception, MetropolisError)
