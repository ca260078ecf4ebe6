"""Tables of a TOML file as typed values; every fault names the file, the table and the field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from metropolis.names import did_you_mean
from metropolis.plan.application import ApplicationError
from metropolis.sim.profiles import read_toml
from metropolis.types import MetropolisError

T = TypeVar("T")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


class Table:
    """A table of a file. Subtables are taken out; `read` converts the rest."""

    def __init__(
        self, path: Path, name: str, content: Mapping[str, Any], files: list[Path]
    ) -> None:
        self.path, self.name = path, name
        self.files = files
        """What has been read for all tables of the file, and itself."""
        self._content = dict(content)
        self._taken: list[str] = []

    @classmethod
    def of_file(cls, path: Path) -> Table:
        """The top of a file. Raises MetropolisError if it is no TOML."""
        return cls(path, "", read_toml(path), [path])

    def __bool__(self) -> bool:
        return bool(self._content)

    def error(self, sentence: str, field: str = "") -> ApplicationError:
        """The error for a field, or for the table."""
        table = f" [{self.name}]" if self.name else ""
        return ApplicationError(f"{self.path}:{table}{field and f' {field}:'} {sentence}")

    @contextmanager
    def located(self, field: str = "") -> Iterator[None]:
        """Raise a MetropolisError with the file, the table and the field before it."""
        try:
            yield
        except MetropolisError as error:
            raise self.error(f"{error}", field) from error

    def take(self, field: str) -> Table:
        """The subtable of that name; empty if there is none."""
        self._taken.append(field)
        content = self._content.pop(field, {})
        if not isinstance(content, dict):
            raise self.error(f"should be a table, [{self._below(field)}]", field)
        return Table(self.path, self._below(field), content, self.files)

    def take_all(self, field: str) -> dict[str, Table]:
        """The subtables of the subtable of that name."""
        group = self.take(field)
        return {name: group.take(name) for name in tuple(group._content)}

    def read(self, kind: type[T]) -> T:
        """The rest as a dataclass or struct.

        Raises ApplicationError on an unknown, missing or wrong field.
        """
        self._refuse_unknown(_fields_of(kind))
        try:
            return msgspec.convert(self._content, kind)
        except msgspec.ValidationError as error:
            raise self._explained(f"{error}", kind) from error

    def read_all(self, kind: type[T]) -> dict[str, T]:
        """The rest as fields of any name, whose values are of one kind."""
        found = {}
        for field, value in self._content.items():
            try:
                found[field] = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise self._explained(f"{error} - at `$.{field}`", kind) from error
        return found

    def read_one_of(self, kinds: Mapping[str, type]) -> Any:
        """The rest as the kind whose field it has."""
        found = [field for field in kinds if field in self._content]
        if len(found) != 1:
            known = [name for kind in kinds.values() for name in _fields_of(kind)]
            self._refuse_unknown(known)
            raise self.error(
                f"has {' and '.join(found) or 'none of the fields'}; write exactly one of "
                f"{', '.join(kinds)}"
            )
        return self.read(kinds[found[0]])

    def existing(self, path: str, field: str) -> Path:
        """The file or folder that a field names, relative to the file."""
        found = self.path.parent / path
        try:
            exists = found.exists()
        except (OSError, ValueError):  # too long, or with a zero byte
            exists = False
        if not exists:
            raise self.error(f"{found} does not exist; paths are relative to {self.path}", field)
        self.files.append(found)
        return found

    def _below(self, field: str) -> str:
        quoted = field if re.fullmatch(r"[\w-]+", field) else f'"{field}"'
        return f"{self.name}.{quoted}" if self.name else quoted

    def _refuse_unknown(self, known: Iterable[str]) -> None:
        known = [*known, *self._taken]
        for field in self._content:
            if field not in known:
                meant = did_you_mean(field, known)
                raise self.error(
                    f"there is no field {field!r}{meant}; there are {', '.join(known)}"
                )

    def _explained(self, message: str, kind: type) -> ApplicationError:
        sentence, _, place = message.partition(" - at `$")
        field = place.rstrip("`").removeprefix(".")
        if missing := re.search(r"missing required field `(\w+)`", sentence):
            return self.error(f"lacks the field {missing[1]!r}")
        if sentence.startswith("Invalid enum value"):
            choices = get_args(get_type_hints(kind)[field])
            return self.error(f"should be one of {', '.join(choices)}", field)
        sentence = re.sub(r"`([\w |]+)`", _in_words, sentence)
        sentence = sentence.replace("Expected", "expected", 1)
        return self.error(sentence, field)


def _fields_of(kind: Any) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in dataclass_fields(kind))
    return tuple(kind.__struct_fields__)


def _in_words(found: re.Match[str]) -> str:
    words = [_WORDS.get(word, word) for word in found[1].split(" | ") if word != "null"]
    return " or ".join(words) or "nothing"
