"""A run in an own store: the file of docs/store.md, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metropolis.durable import read_object
from tests.cli.conftest import summary
from tests.commands import Command

DOCS = Path(__file__).parents[2] / "docs"
OWN = "own_store.py:OwnServer"


@pytest.fixture(autouse=True)
def own_store(run: Command) -> Path:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "store.md").read_text(), re.DOTALL)
    file = Path("own_store.py")
    file.write_text(example)
    return file


def test_the_documented_store_passes_the_check(own_store: Path) -> None:
    checked = subprocess.run(
        [sys.executable, own_store], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_run_is_kept_in_it(run: Command, own_store: Path, uninterrupted: dict[str, Any]) -> None:
    own_store.write_text(
        own_store.read_text().replace(
            "        super().collect(fence, below)",
            "        super().collect(fence, below)\n        open('collected', 'a').write('.')",
        )
    )
    own = summary(run, "meadow.py", "--store", OWN, "--workers", "2", "--quiet", "--out", "own")
    assert own["history_sha256"] == uninterrupted["history_sha256"]
    assert Path("collected").exists()


def test_it_is_resumed_in_it(
    run: Command, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, _ = run("interrupted.py", "--store", OWN, "--out", "own")
    assert status == 130
    kept = read_object(tmp_path / "own" / "store.json", "it should be there")
    assert kept["address"] == f"{tmp_path.resolve() / 'own_store.py'}:OwnServer"
    Path("interrupted.py").write_text(Path("meadow.py").read_text())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    own = summary(run, "resume", "../own", "--quiet")
    assert own["history_sha256"] == uninterrupted["history_sha256"]


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("own_store.py", "own_store.py names no class; write own_store.py:CLASS"),
        ("nowhere.py:Own", "there is no file nowhere.py; name one with a class Own"),
        ("own_store.py:Nope", "has no class Nope; it should have one that is a metropolis.store"),
        ("own_store.py:OwnStore", "should be one that is a metropolis.store.base.Server and is"),
        ("own_store.py:Step", "it should be one that is a metropolis.store.base.Server"),
        ("own_store.py:Server", "TypeError: Can't instantiate abstract class Server"),
    ],
)
def test_what_is_no_store_is_refused(run: Command, store: str, sentence: str) -> None:
    status, _, err = run("meadow.py", "--store", store, "--quiet", "--out", "own")
    assert (status, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not Path("own").exists()


@pytest.mark.parametrize(
    "method",
    [
        "begin(self, info, entities, minds, events=())",
        "nodes(self)",
        "claims(self, *arguments, **options)",
        "commit(self, *arguments, **options)",
        "acknowledgements(self, *arguments)",
        "dispatch(self, *arguments)",
        "collect(self, fence, below)",
        "renew_lease(self, fence, ttl_s)",
        "extend(self, claim, lease_s)",
    ],
)
def test_an_error_in_a_method_names_class_method_and_line(
    run: Command, own_store: Path, method: str
) -> None:
    start = "    def collect(self, fence: int, below: Step) -> None:\n"
    text = own_store.read_text()
    line = text.partition(start)[0].count("\n") + 2
    own_store.write_text(
        text.replace(
            start + "        super().collect(fence, below)\n",
            f"    def {method}:\n        raise KeyError('lost')\n",
        )
    )
    # Long enough, and with a lease short enough, that every method is called.
    how = "--steps", "2000", "--lease", "0.1", "--quiet", "--out", "own"
    status, _, err = run("meadow.py", "--store", OWN, *how)
    name = method.partition("(")[0]
    assert status == 2
    assert err.count("\n") == 1
    assert re.match(
        rf"metropolis: the store OwnStore failed in {name}: \S*own_store\.py:{line}: "
        r"KeyError: 'lost'; fix it there(; the run is at step \d+ of 2000; continue with: .*)?$",
        err,
    )


def test_workers_on_ray_are_refused(run: Command) -> None:
    err = run("meadow.py", "--store", OWN, "--workers", "ray:1", "--out", "own").refusal
    assert err == (
        "metropolis: workers on Ray do not reach the store own_store.py:OwnServer; name embedded "
        "or a redis://… URL, or a number of workers, in this process\n"
    )
