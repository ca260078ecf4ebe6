"""Reading of the project's JSON files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from metropolis.names import cut
from metropolis.types import MetropolisError

NUMBER_MAX = 10**9


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises MetropolisError, which names the file."""
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MetropolisError(
            f"{path}: cannot be read ({reason}); it should be a JSON file of a simulation of "
            "Generative Agents"
        ) from None
    if not isinstance(content, dict):
        raise MetropolisError(f"{path}: should be a JSON object")
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        surrogate = str(error.object)[error.start]
        raise MetropolisError(
            f"{path}: contains {surrogate!r}, a lone surrogate that UTF-8 cannot encode; leave it "
            "out"
        ) from None
    return content


def number_of(value: Any) -> float | None:
    """A JSON number, or a text of one, which models write; None: it is neither, or too large."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    return float(value) if type(value) in (int, float) and abs(value) <= NUMBER_MAX else None


class Fields:
    """The fields of a JSON object; errors name the file and the field."""

    def __init__(self, content: dict[str, Any], place: str) -> None:
        self.content, self.place = content, place

    def text(self, field: str) -> str:
        """A text."""
        text = self.content.get(field)
        if not isinstance(text, str):
            raise self.wrong(field, "a text")
        return text

    def texts(self, field: str) -> list[str]:
        """A list of texts; empty if there is none."""
        texts = self.content.get(field) or []
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise self.wrong(field, "a list of texts")
        return texts

    def whole(self, field: str) -> int:
        """A whole number."""
        number = number_of(self.content.get(field))
        if number is None or not number.is_integer():
            raise self.wrong(field, f"a whole number of at most {NUMBER_MAX:,}")
        return int(number)

    def number(self, field: str) -> float:
        """A number."""
        number = number_of(self.content.get(field))
        if number is None:
            raise self.wrong(field, f"a number of at most {NUMBER_MAX:,}")
        return number

    def tile(self, field: str) -> tuple[int, int]:
        """A pair of whole numbers."""
        tile = self.content.get(field)
        if not isinstance(tile, list) or [*map(type, tile)] != [int, int]:
            raise self.wrong(field, "a tile [x, y]")
        return tile[0], tile[1]

    def wrong(self, field: str, right: str) -> MetropolisError:
        """The error for a field that should be `right`."""
        return MetropolisError(
            f"{self.place}: the field {field} is {cut(self.content.get(field))}; it should be "
            f"{right}"
        )
