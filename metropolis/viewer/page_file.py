"""One file that contains the page and all its data, to be shared: `metropolis view --out`.

Modules are data: URLs in an import map, chunks are packed texts in script elements that no browser
executes. The page loads nothing else; a policy in its head sees to that.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from metropolis.durable import write_atomically
from metropolis.progress import progress_bar
from metropolis.types import AgentId, MetropolisError, Step
from metropolis.viewer.data.chunks import json_bytes
from metropolis.viewer.data.side import Side
from metropolis.viewer.page_files import page_files

FILE_BYTES_MAX = 256 << 20
TEXTS_MAX = 5_000
"""Maximum number of calls, of all sides, whose texts the file contains."""
TEXT_BYTES_MAX = 16 << 20
"""Maximum size of the texts of calls, packed."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)
_IMPORT = re.compile(r'\b(from|import)(\s*\(?\s*)"\./([\w.-]+\.js)"')
_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="([\w.-]+\.js)"[^>]*></script>')
_STYLE = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*\bhref="([\w.-]+\.css)"[^>]*/?>')
PREFIX = "page/"
"""Before the names of modules in the import map."""


def write_page(path: Path, sides: Sequence[Side]) -> str | None:
    """Write the file; return a sentence if it leaves out the texts of calls.

    Raises MetropolisError if it would be larger than `FILE_BYTES_MAX`, or cannot be written.
    """
    packed = {}
    total = 0
    with progress_bar(1 + sum(map(_count_of, sides)), "chunks") as (advance, _):
        for name, content in _named_chunks(sides):
            packed[name] = _packed(content)
            total += len(packed[name])
            advance(1)
            if total > FILE_BYTES_MAX:
                raise MetropolisError(
                    f"{path}: the page would have more than {FILE_BYTES_MAX >> 20} MiB; share the "
                    "folder instead, or show a shorter run"
                )
    texts = _texts_of(sides)
    packed |= texts or {}
    write_atomically(path, _page_of(page_files(), packed))
    if texts is not None:
        return None
    return (
        f"the file does not contain texts of calls, since there are more than {TEXTS_MAX:,} "
        f"calls or {TEXT_BYTES_MAX >> 20} MiB of texts"
    )


def _count_of(side: Side) -> int:
    counts: Mapping[str, int] = side.meta()["counts"]
    return 3 + sum(counts.values())


def _named_chunks(sides: Sequence[Side]) -> Iterator[tuple[str, bytes]]:
    yield "sides", json_bytes({"sides": len(sides)})
    for number, side in enumerate(sides):
        yield from ((f"{number}/{name}", content) for name, content in _chunks_of(side))


def _chunks_of(side: Side) -> Iterator[tuple[str, bytes]]:
    meta = side.meta() | {"live": False}
    yield "meta/0", json_bytes(meta)
    for name in ("ends", "bounds"):
        yield f"{name}/0", side.chunk(name, "0")
    for name, count in meta["counts"].items():
        for number in range(count):
            yield f"{name}/{number}", side.chunk(name, f"{number}")


def _texts_of(sides: Sequence[Side]) -> Mapping[str, str] | None:
    """The texts of all calls; None: there are too many."""
    counts = [side.meta()["calls"] for side in sides]
    if sum(counts) > TEXTS_MAX:
        return None
    packed, total = {}, 0
    for number, (side, count) in enumerate(zip(sides, counts, strict=True)):
        indices = {side.timeline.call(index): index for index in range(count)}
        for index, content in _texts_in(side, indices):
            text = packed[f"{number}/call/{index}"] = _packed(content)
            total += len(text)
            if total > TEXT_BYTES_MAX:
                return None
    return packed


def _texts_in(
    side: Side, indices: dict[tuple[Step, AgentId, int], int]
) -> Iterator[tuple[int, bytes]]:
    """The texts of calls by index; those that are recorded take one pass through their file."""
    if indices:
        for call, text in side.texts.recorded():
            if (index := indices.pop(call, None)) is not None:
                yield index, json_bytes(text)
    for index in indices.values():  # repeated ones, and those of steps that are not recorded
        yield index, side.chunk("call", f"{index}")


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _page_of(files: Mapping[str, tuple[str, bytes]], chunks: Mapping[str, str]) -> bytes:
    texts = {name: content.decode() for name, (_, content) in files.items()}
    modules = {
        PREFIX + name: "data:text/javascript;base64,"
        + base64.b64encode(_IMPORT.sub(rf'\1\2"{PREFIX}\3"', text).encode()).decode()
        for name, text in texts.items()
        if name.endswith(".js")
    }
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>'
    )
    page = texts["index.html"].replace("<head>", f"<head>{head}", 1)
    page = _STYLE.sub(lambda found: f"<style>{texts[found[1]]}</style>", page)
    page = _SCRIPT.sub(
        lambda found: f'<script type="module">import "{PREFIX}{found[1]}";</script>', page
    )
    data = "\n".join(
        f'<script type="text/plain" data-chunk="{name}">{text}</script>'
        for name, text in chunks.items()
    )
    before, body, after = page.rpartition("</body>")
    return f"{before}{data}\n{body}{after}".encode()
