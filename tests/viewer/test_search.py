"""The search covers both sides of the page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.viewer.conftest import Serve, Show, history, until


def talks(folder: Path) -> Counter[str]:
    """How often each text is said in conversations."""
    return Counter(
        text
        for record in history(folder)
        for event in record.get("events", [])
        if event["kind"] == "conversation"
        for _, text in event["data"]["lines"]
    )


def rows(page: Any, query: str) -> list[str]:
    """Search as a reader does; returns the rows of speech that are found."""
    page.fill("#search", query)
    page.keyboard.press("Enter")
    until(page, "metropolis.search.hits !== null && !metropolis.search.isRunning")
    return [row.inner_text() for row in page.query_selector_all("#panel .says")]


def test_both_sides_of_a_branch_are_searched(
    smallville: Path, branch: Path, serve: Serve, show: Show
) -> None:
    own, other = talks(smallville), talks(branch)
    page = show(serve(smallville, "--beside", branch))
    both = next(text for text in own if own[text] == other[text])
    found = rows(page, both)
    assert len(found) == own[both]  # each moment once
    assert not any("smallville: " in row or "branch: " in row for row in found)
    for here, there, name, side in ((own, other, "smallville", 0), (other, own, "branch", 1)):
        text = next(text for text in here if text not in there)
        found = rows(page, text)
        assert len(found) == here[text]
        assert all(f"{name}: " in row for row in found)
        page.locator("#panel .says button").first.click()
        assert page.evaluate("metropolis.state.side") == side
    assert rows(page, "a text without a match") == []
    times = page.evaluate(
        "metropolis.search.find('a').then(() =>"
        " metropolis.search.hits.map(([{moment}]) => moment[0]))"
    )
    assert times == sorted(times)


def test_a_name_on_both_sides_is_listed_once(race: Path, serve: Serve, show: Show) -> None:
    page = show(serve(race))
    name = page.evaluate("metropolis.sides[1].meta.agents[7]")
    rows(page, name)
    assert page.locator(f"#panel a:text-is('{name}')").count() == 1


def test_news_is_followed_on_both_sides(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville, "--beside", smallville))
    page.click("#tab-social")
    page.fill(".news input", "library")
    page.click(".news button")
    words = page.evaluate("metropolis.views.social.map(({news}) => news?.words)")
    assert words == ["library", "library"]
