"""The files of the page, which are part of the package."""

from __future__ import annotations

from importlib.resources import files

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""Media types by the endings of the files that are served."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """File name -> its media type and content."""
    found = {}
    for path in (files("metropolis.viewer") / "page").iterdir():
        dot = path.name.rfind(".")
        if dot > 0 and path.name[dot:] in TYPES:
            found[path.name] = TYPES[path.name[dot:]], path.read_bytes()
    return found
