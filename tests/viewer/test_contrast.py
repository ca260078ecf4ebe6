"""Colours of the page in both themes: contrast as WCAG 2.2 asks, and categories that differ."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
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


CATEGORIES = [f"category-{index}" for index in range(8)]
VISIONS = {
    "usual": np.eye(3),
    "without red cones": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "without green cones": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
}
"""What people see of linear red, green and blue (Machado, Oliveira and Fernandes 2009)."""


def linear(colour: str) -> np.ndarray:
    """The light of red, green and blue of a colour, #rrggbb."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def oklab(light: np.ndarray) -> np.ndarray:
    """Coordinates in which distances are about those that people see (Ottosson 2020)."""
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    axes = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(axes) @ np.cbrt(np.array(cones) @ np.clip(light, 0, 1))


def contrast(one: str, other: str) -> float:
    """Of two colours, #rrggbb."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colours_of(theme: str) -> dict[str, str]:
    _, style = page_files()["colours.css"]
    block = re.search(THEMES[theme], style.decode(), re.DOTALL)
    assert block is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))


@pytest.mark.parametrize("theme", THEMES)
def test_texts_are_readable(theme: str) -> None:
    colours = colours_of(theme)
    for text, behind in PAIRS:
        assert contrast(colours[text], colours[behind]) >= 4.5, f"{text} on {behind}"


@pytest.mark.parametrize("theme", THEMES)
def test_categories_contrast_with_the_page(theme: str) -> None:
    """Calls are on paper, lists of calls on the panel, lines of instances on areas."""
    colours = colours_of(theme)
    for category in CATEGORIES:
        for behind in ("paper", "panel", "area"):
            found = contrast(colours[category], colours[behind])
            assert found >= 3, f"{category} on {behind}"


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", THEMES)
def test_categories_differ(theme: str, vision: str) -> None:
    """Any two may be beside each other."""
    colours = colours_of(theme)
    seen = {category: oklab(VISIONS[vision] @ linear(colours[category])) for category in CATEGORIES}
    for one, other in combinations(CATEGORIES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 0.1, f"{one} and {other}"
