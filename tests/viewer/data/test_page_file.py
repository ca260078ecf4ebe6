"""`view --out`: one file that contains the page and the chunks that the server would give."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metropolis.line_file import texts_of_lines
from metropolis.types import MetropolisError
from metropolis.viewer import page_file
from metropolis.viewer.data import call_texts
from metropolis.viewer.data.opening import open_run, open_sides
from metropolis.viewer.page_file import PREFIX, write_page
from metropolis.viewer.page_files import page_files

CHUNK = re.compile(r'<script type="text/plain" data-chunk="([^"]+)">([^<]*)</script>')


def chunks_in(path: Path) -> dict[str, bytes]:
    return {
        name: gzip.decompress(base64.b64decode(text))
        for name, text in CHUNK.findall(path.read_text())
    }


def test_it_contains_the_chunks_of_both_sides(shared_run: Path, tmp_path: Path) -> None:
    sides = open_sides(shared_run, f"{shared_run}")
    out = tmp_path / "page.html"
    assert write_page(out, sides) is None
    found = chunks_in(out)
    assert json.loads(found.pop("sides")) == {"sides": 2}
    for name, content in found.items():
        side, chunk, number = name.split("/")
        assert content == sides[int(side)].chunk(chunk, number), name
    names = {name.split("/")[1] for name in found}
    expected = {"meta", "positions", "moments", "executions", "calls", "ends", "bounds", "call"}
    assert names == expected
    assert sum("/call/" in name for name in found) == 2 * sides[0].timeline.calls


def test_the_texts_of_calls_take_one_pass_through_their_file(
    shared_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counted(*arguments: Any) -> Iterator[bytes]:
        passes.append(arguments)
        return texts_of_lines(*arguments)

    monkeypatch.setattr(call_texts, "texts_of_lines", counted)
    sides = open_sides(shared_run)
    assert sides[0].meta()["calls"] > 10
    write_page(tmp_path / "page.html", sides)
    assert len(passes) == 1


def test_a_run_in_progress_is_not_live_in_the_file(shared_run: Path, tmp_path: Path) -> None:
    side = open_run(shared_run)
    side.is_live = lambda: True
    write_page(tmp_path / "page.html", [side])
    assert json.loads(chunks_in(tmp_path / "page.html")["0/meta/0"])["live"] is False


def test_it_loads_nothing(shared_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_page(out, [open_run(shared_run)])
    page = CHUNK.sub("", out.read_text())
    assert "default-src 'none'" in page
    assert not re.search(r'\b(?:src|href)="(?!data:)', page)
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page)[1])["imports"]  # type: ignore[index]
    scripts = {name for name in page_files() if name.endswith(".js")}
    assert {name.removeprefix(PREFIX) for name in modules} == scripts
    for url in modules.values():
        text = base64.b64decode(url.partition("base64,")[2]).decode()
        for imported in re.findall(
            r'^(?:import|export)\b[^;]*?from\s*"([^"]+)"', text, re.MULTILINE
        ):
            assert imported in modules


def test_what_is_too_large(
    shared_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = open_run(shared_run)
    for limit, least in (("TEXTS_MAX", side.timeline.calls - 1), ("TEXT_BYTES_MAX", 100)):
        with monkeypatch.context() as patch:
            patch.setattr(page_file, limit, least)
            note = write_page(tmp_path / "page.html", [side])
            assert "texts of calls" in (note or "")
            assert not any("/call/" in name for name in chunks_in(tmp_path / "page.html"))
    monkeypatch.setattr(page_file, "FILE_BYTES_MAX", 1 << 10)
    with pytest.raises(MetropolisError, match="share the folder instead"):
        write_page(tmp_path / "other.html", [side])
    assert not (tmp_path / "other.html").exists()
