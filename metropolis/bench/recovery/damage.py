"""Damage to the folder of a run: one change, drawn from a seed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

Damage = Callable[[Path, Random, Path], None]
"""Damages a file; the last argument is the folder of another run."""
HUGE_BYTES = 1 << 24


def flip_bits(path: Path, draw: Random, _other: Path) -> None:
    """Flip some bits."""
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def change_bytes(path: Path, draw: Random, _other: Path) -> None:
    """Change a range of bytes."""
    content = bytearray(path.read_bytes())
    begins = draw.randrange(len(content))
    size = draw.choice([0, 1, 5, 40])
    put = draw.choice([b"", b"\0" * size, b"\n", b'"', b"{}", draw.randbytes(size)])
    content[begins : begins + size] = put
    path.write_bytes(content)


def change_number(path: Path, draw: Random, _other: Path) -> None:
    """Replace a number by another, or by something else."""
    content = path.read_bytes()
    found = list(re.finditer(rb"\d+", content))
    one = draw.choice(found)
    now = draw.choice(
        [b"0", b"1", b"-1", b"%d" % (int(one[0]) + 1), b"1e999", b"99999999999999999999", b"null"]
    )
    path.write_bytes(content[: one.start()] + now + content[one.end() :])


def change_word(path: Path, draw: Random, _other: Path) -> None:
    """Replace a word by another."""
    content = path.read_bytes()
    found = list(re.finditer(rb"[a-z]{2,}", content))
    one = draw.choice(found)
    path.write_bytes(content[: one.start()] + draw.choice(found)[0] + content[one.end() :])


def change_lines(path: Path, draw: Random, _other: Path) -> None:
    """Repeat, swap, delete or join lines."""
    lines = path.read_bytes().splitlines(keepends=True)
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.choice(["repeat", "repeat at the end", "swap", "delete", "join"]):
        case "repeat":
            lines.insert(one, lines[one])
        case "repeat at the end":
            lines += lines[one:]
        case "swap":
            lines[one], lines[other] = lines[other], lines[one]
        case "delete":
            del lines[one : one + draw.choice([1, 1, 3])]
        case "join":
            lines[one] = lines[one].rstrip(b"\n")
    path.write_bytes(b"".join(lines))


def cut(path: Path, draw: Random, _other: Path) -> None:
    """Truncate the file at any byte or after a line."""
    content = path.read_bytes()
    size = draw.randrange(len(content) + 1)
    if draw.random() < 0.5:
        size = content.rfind(b"\n", 0, size) + 1
    path.write_bytes(content[:size])


def add(path: Path, draw: Random, _other: Path) -> None:
    """Append something."""
    nested = draw.choice([b"[", b'{"a":'])
    more = [b"\n", b"{}\n", b"x", b"\xff\xfe", draw.randbytes(90), nested * 200_000]
    with path.open("ab") as file:
        file.write(draw.choice(more))


def nest(path: Path, draw: Random, _other: Path) -> None:
    """Write endlessly nested JSON."""
    path.write_bytes(draw.choice([b"[", b'{"line":']) * 200_000)


def enlarge(path: Path, draw: Random, _other: Path) -> None:
    """Resize the file: append zeros, or truncate it."""
    os.truncate(path, draw.choice([1 << 16, HUGE_BYTES]))


def remove(path: Path, _draw: Random, _other: Path) -> None:
    """Delete the file."""
    path.unlink()


def replace(path: Path, draw: Random, other: Path) -> None:
    """Replace the content by nothing, or by a file of another run or of this one."""
    if draw.random() < 0.1:
        path.write_bytes(b"")
        return
    files = [file for file in other.rglob("*") if file.is_file()]
    same = [file for file in files if file.name == path.name]
    siblings = [file for file in path.parent.iterdir() if file.is_file()]
    shutil.copyfile(draw.choice(draw.choice([files, same or files, siblings])), path)


def add_lines_of_another(path: Path, draw: Random, other: Path) -> None:
    """Insert lines of the same file of another run."""
    files = [file for file in other.rglob("*") if file.name == path.name]
    lines = path.read_bytes().splitlines(keepends=True)
    theirs = files[0].read_bytes().splitlines(keepends=True) if files else lines
    at = draw.randrange(len(lines))
    lines[at : at + draw.choice([0, 1, 99])] = theirs[at : at + draw.choice([1, 99])]
    path.write_bytes(b"".join(lines))


def change_kind(path: Path, draw: Random, _other: Path) -> None:
    """Replace the file by a folder, a pipe or a broken link."""
    path.unlink()
    match draw.choice(["folder", "pipe", "link to nothing", "link to itself"]):
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to nothing":
            path.symlink_to(path.parent / "nothing")
        case "link to itself":
            path.symlink_to(path)


IN_PLACE: tuple[Damage, ...] = (flip_bits, change_bytes, change_number, change_lines, cut, add)
"""Damages that leave a file without content of another run."""
ALL: tuple[Damage, ...] = (
    *IN_PLACE,
    flip_bits,
    change_number,
    change_word,
    change_lines,
    nest,
    enlarge,
    remove,
    replace,
    add_lines_of_another,
    change_kind,
)


def damage(path: Path, draw: Random, other: Path, damages: Sequence[Damage] = ALL) -> str:
    """Apply one of `damages` to a file; return its name."""
    change = draw.choice(damages)
    try:
        change(path, draw, other)
    except (IndexError, shutil.SameFileError):  # the file has nothing to change
        path.write_bytes(b"")
    return change.__name__
