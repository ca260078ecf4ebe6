"""Cards: a title, facts and figures. Colours are those of the notebook, light or dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from metropolis.names import cut_text, shortened

CHARACTERS_MAX = 200
"""Longer texts are cut."""
WIDTH_PX = 480
_MUTED = "opacity:.65"


def escaped(text: object) -> str:
    """`text` for HTML: cut after CHARACTERS_MAX, markup and unprintable characters escaped."""
    shown = cut_text(str(text), CHARACTERS_MAX)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
    return html.escape(shown)


def card(kind: str, title: str, facts: Mapping[str, object], figures: Sequence[str] = ()) -> str:
    """The HTML of a card: `title` and `facts` are texts, `figures` are HTML.

    Facts that are None are left out.
    """
    rows = "".join(
        f'<div style="{_MUTED}">{escaped(name)}</div><div>{escaped(value)}</div>'
        for name, value in facts.items()
        if value is not None
    )
    return (
        f'<div style="font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:{WIDTH_PX}px;'
        f'padding:4px 0"><div style="margin-bottom:4px"><b style="font-size:15px">'
        f'{escaped(title)}</b> <span style="{_MUTED}">{escaped(kind)}</span></div>'
        '<div style="display:grid;grid-template-columns:max-content 1fr;column-gap:14px;'
        f'overflow-wrap:anywhere">{rows}</div>{"".join(figures)}</div>'
    )


def listed(names: Sequence[str], names_max: int = 6) -> str:
    """The first of `names`, and the number of the others; as text."""
    characters_max = CHARACTERS_MAX // (names_max + 1) - len(", ")
    return shortened([cut_text(name, characters_max) for name in names], names_max)


def figure(drawing: str, caption: str) -> str:
    """The HTML of a figure: `drawing` is SVG, `caption` a text."""
    return (
        f'<div style="margin-top:8px">{drawing}<div style="font-size:12px;{_MUTED}">'
        f"{escaped(caption)}</div></div>"
    )
