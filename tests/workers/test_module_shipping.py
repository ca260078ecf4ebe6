"""Authors' modules reach processes that cannot import them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from metropolis.workers.module_shipping import ImportedSources, sources_of

FILES = {
    "shipped_world.py": "from shipped_space.part import NUMBER\nfrom shipped_package import NAME\n",
    "shipped_space/part.py": "NUMBER = 4\n",
    "shipped_package/__init__.py": "from shipped_package.within import NAME\n",
    "shipped_package/within.py": "# coding: latin-1\nNAME = 'Zoë'\n",
}


def test_modules_and_their_neighbours_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source, "latin-1")
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        import_module("shipped_world")
        sources = sources_of({"shipped_world", "msgspec", "metropolis.types"})
    for name in sources:
        del sys.modules[name]
    assert {name.partition(".")[0] for name in sources} == {
        "shipped_world",
        "shipped_space",
        "shipped_package",
    }
    monkeypatch.setattr(sys, "meta_path", [ImportedSources(sources), *sys.meta_path])
    world = import_module("shipped_world")
    assert (world.NUMBER, world.NAME) == (4, "Zoë")
    for name in sources:
        del sys.modules[name]
