"""Opens the page in a browser, without showing its token to other users of this machine."""

from __future__ import annotations

import html
import tempfile
import webbrowser


def open_browser(url: str) -> None:
    """Open `url` through a private file: the arguments of a command are visible to all users."""
    handle, path = tempfile.mkstemp(prefix="metropolis-", suffix=".html")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(url)}">'
            f'<a href="{html.escape(url)}">Open the viewer</a>'
        )
    webbrowser.open(f"file://{path}")
