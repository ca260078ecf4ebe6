"""What an appearance reads of states and events."""

from __future__ import annotations

from typing import Any

import pytest

from metropolis.types import MetropolisError
from metropolis.world.appearance import (
    TEXT_LETTERS,
    Appearance,
    Look,
    check_appearance,
    listeners,
    look_of,
    utterances,
)
from metropolis.world.entities import Entity


@pytest.mark.parametrize(
    ("appearance", "state", "look"),
    [
        (Appearance(), {}, Look()),
        (Appearance(), {"doing": "sleeping", "asleep": True}, Look("sleeping", asleep=True)),
        (Appearance(), {"doing": None, "action": 3, "emoji": "🍳"}, Look("3", "🍳")),
        (Appearance(), {"asleep": "yes", "place": ["a", 1.5]}, Look(place='["a", 1.5]')),
        (Appearance(label="mood"), {"doing": "x", "mood": {"b": None}}, Look('{"b": null}')),
        (Appearance(label="x", place="x"), {"x": "y" * 3000}, Look("y" * 2000, "", "y" * 2000)),
    ],
)
def test_looks(appearance: Appearance, state: dict[str, Any], look: Look) -> None:
    assert look_of(appearance, state) == look
    assert look_of(appearance, Entity("a", (0, 0), "agent", state).state) == look, "frozen, too"


def test_events() -> None:
    appearance = Appearance(
        speech={"said": "text"},
        dialogue={"talk": "lines"},
        thought={"mused": "text"},
        told={"talk": "with", "letter": "to"},
    )

    def shown(kind: str, **data: Any) -> list[tuple[str, str, str]]:
        return [*utterances(appearance, kind, "Ada", data)]

    assert shown("said", text="Hello") == [("Ada", "says", "Hello")]
    assert shown("said") == [("Ada", "says", "")]
    assert shown("mused", text="x" * 3000) == [("Ada", "thinks", "x" * TEXT_LETTERS)]
    assert shown("talk", lines=[("Ada", "Hi"), ["Bo", "Ho"], "odd", 3, []]) == [
        ("Ada", "says", "Hi"),
        ("Bo", "says", "Ho"),
    ]
    assert shown("talk", lines="none") == []
    assert shown("waved", at="Bo", times=2) == [("Ada", "waved", "Bo 2")]
    assert listeners(appearance, "talk", {"with": "Bo"}) == ["Bo"]
    assert listeners(appearance, "letter", {"to": ("Bo", "Cy")}) == ["Bo", "Cy"]
    assert listeners(appearance, "letter", {}) == []
    assert listeners(appearance, "said", {}) is None


@pytest.mark.parametrize(
    ("appearance", "sentence"),
    [
        ("blue", "is 'blue'; it should be a metropolis.Appearance"),
        (Appearance(label=5), "Expected `str | null`, got `int`"),  # type: ignore[arg-type]
        (Appearance(speech={"said": 1}), "Expected `str`, got `int`"),  # type: ignore[dict-item]
        (Appearance(place='a"b'), "a key has no quotation marks"),
        (Appearance(emoji="\n"), "a key has no quotation marks"),
        (Appearance(label=object()), "is unsupported"),  # type: ignore[arg-type]
    ],
)
def test_wrong_appearances(appearance: Any, sentence: str) -> None:
    with pytest.raises(MetropolisError) as raised:
        check_appearance(appearance, "the world W")
    assert sentence in str(raised.value)
    assert "the appearance of the world W" in str(raised.value)
