"""The page's URL says what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.viewer.conftest import Serve, Show, run_metropolis, until

SHOWN = """(({view, basis, at, side, selected}) => {
  const name = selected === null ? null : metropolis.sides[side].meta.agents[selected];
  return [view, basis, at, side, name];
})(metropolis.state)"""


def shown(page: Any) -> list[Any]:
    """View, by what, moment, side and selected agent."""
    until(page, "document.body.dataset.state === 'ready'")
    found: list[Any] = page.evaluate(SHOWN)
    return found


def has(text: str) -> str:
    """The condition that the URL contains a text."""
    return f"location.hash.includes('{text}')"


def test_a_copied_url_shows_the_same(race: Path, serve: Serve, show: Show) -> None:
    page = show(serve(race))
    page.keyboard.press("3")
    page.evaluate("metropolis.moveTo('time', 123.5)")
    page.evaluate("metropolis.select(1, 4)")
    name = page.evaluate("metropolis.sides[1].meta.agents[4]")
    until(page, has("&agent="))
    expected = ["calls", "time", 123.5, 1, name]
    assert shown(show(page.url)) == expected
    page.reload()
    assert shown(page) == expected


def test_back_leads_to_the_view_before(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(serve(smallville))
    page.evaluate("metropolis.moveTo('step', 40)")
    page.keyboard.press("2")
    until(page, has("view=steps"))
    page.keyboard.press("n")
    until(page, has("&agent="))
    page.evaluate("metropolis.moveTo('step', 41)")
    until(page, has("at=41"))
    page.go_back()
    until(page, "metropolis.state.selected === null")
    assert shown(page)[0] == "steps"
    page.go_back()
    until(page, "metropolis.state.view === 'town'")
    page.go_forward()
    page.go_forward()
    until(page, "metropolis.state.selected === 0")
    assert shown(page)[:3] == ["steps", "step", 41]


def test_unknown_parts_of_a_url_change_nothing(smallville: Path, serve: Serve, show: Show) -> None:
    url = serve(smallville)
    expected = shown(show(url))
    for parts in (
        "view=foo&by=time&at=x&agent=Nobody&side=9",
        "view=__proto__&side=length",
        "by=step&at=NaN",
        "by=time&at=Infinity",
        "at=12",
        "%E0%A4%A&&&===",
    ):
        assert shown(show(f"{url}&{parts}")) == expected, parts


def test_a_moment_beyond_the_run_is_its_end(smallville: Path, serve: Serve, show: Show) -> None:
    page = show(f"{serve(smallville)}&by=step&at=1e99&view=social")
    assert shown(page) == [
        "social",
        "step",
        page.evaluate("metropolis.sides[0].meta.steps"),
        0,
        None,
    ]


def test_a_name_links_to_the_agent_at_this_moment(
    smallville: Path, serve: Serve, show: Show
) -> None:
    page = show(serve(smallville))
    page.evaluate("metropolis.moveTo('step', 40)")
    page.evaluate("metropolis.search.find('a')")
    link = page.locator("#panel a >> nth=1")
    other = show(page.evaluate("link => link.href", link.element_handle()))
    assert shown(other) == ["town", "step", 40, 0, link.inner_text()]


def test_the_url_of_a_file(smallville: Path, show: Show, tmp_path: Path) -> None:
    run_metropolis("view", smallville, "--out", tmp_path / "page.html")
    page = show((tmp_path / "page.html").as_uri())
    page.keyboard.press("4")
    until(page, has("view=social"))
    page.reload()
    assert shown(page)[0] == "social"
