"""Texts of the page are readable: WCAG 2.2, contrast of at least 4.5 in both themes."""

from __future__ import annotations

import re

import pytest

from metropolis.viewer.page_files import page_files

THEMES = {"light": r":root \{(.*?)\}", "dark": r':root\[data-theme="dark"\] \{(.*?)\}'}
BACKGROUNDS = ("paper", "panel", "floor", "area", "bubble")
PAIRS = [(text, behind) for text in ("ink", "quiet") for behind in BACKGROUNDS] + [
    ("accent", "paper"),
    ("accent", "panel"),
    ("alarm", "paper"),
    ("panel", "accent"),
    ("panel", "quiet"),
]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Of two colours, #rrggbb."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_are_readable(theme: str) -> None:
    _, style = page_files()["style.css"]
    block = re.search(THEMES[theme], style.decode(), re.DOTALL)
    assert block is not None
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block[1]))
    for text, behind in PAIRS:
        assert contrast(colours[text], colours[behind]) >= 4.5, f"{text} on {behind}"
