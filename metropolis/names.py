"""Names and numbers in texts: in messages, misspelt, and as users write them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from metropolis.types import MetropolisError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'kairos'?)", or an empty text when no known name resembles `name`."""
    by_letters = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), by_letters, n=1, cutoff=0.6)
    return f" (did you mean {by_letters[near[0]]!r}?)" if near else ""


def shortened(names: Collection[str], most: int) -> str:
    """The first `most` of `names`, and the number of the others: "a, b and 3 more"."""
    more = len(names) - most
    return ", ".join([*names][:most]) + (f" and {more:,} more" if more > 0 else "")


def counted(count: int, noun: str) -> str:
    """`count` with its noun, like "1 step" or "2,520 steps"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cut(value: object, most: int = 80) -> str:
    """The `repr` of `value`, cut to `most` characters, of which the last is then an ellipsis."""
    return cut_text(repr(value), most)


def cut_text(text: str, most: int) -> str:
    """`text`, cut to `most` characters, of which the last is then an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def count_in(text: str, most: int) -> int | None:
    """The whole number from 1 to `most` that `text` writes in digits; None: another text."""
    digits = text.lstrip("0")
    if not text.isdecimal() or not digits or len(digits) > len(str(most)):
        return None  # int() refuses thousands of digits
    number = int(digits)
    return number if number <= most else None


def first_line(error: BaseException) -> str:
    """The first line of the message of `error`; the name of its class if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def format_position(position: Sequence[float]) -> str:
    """`position` as text, like "(3, 4.5)"."""
    return f"({position[0]:g}, {position[1]:g})"


def is_folder_name(name: str) -> bool:
    """Whether a folder may have this name; no path leads out of it."""
    return name.isprintable() and bool(name.strip(" .")) and not {"/", "\\"} & set(name)


def check_text(what: str, text: str) -> None:
    """Raise MetropolisError unless UTF-8 can represent `text`, which is a `what`: a "question"."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MetropolisError(
            f"the {what} contains {text[error.start]!r}, a lone surrogate that UTF-8 cannot "
            "encode; write it in UTF-8"
        ) from error


def check_name(kind: str, name: object, known: Collection[str]) -> None:
    """Raise MetropolisError unless `name` is among the `known` names of its `kind`."""
    if not isinstance(name, str) or name not in known:
        meant = did_you_mean(str(name), known)
        raise MetropolisError(f"there is no {kind} {name!r}{meant}; there are {', '.join(known)}")
