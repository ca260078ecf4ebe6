"""Runs of the benchmark in a folder: one that was stopped does not repeat them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

import metropolis._core as _core
from metropolis.durable import DamagedError, read_object, write_object

Found = TypeVar("Found")


def kept(folder: Path, settings: object, measure: Callable[[], Found], kind: type[Found]) -> Found:
    """The result of `measure` that the folder holds for these settings, or a new one, then kept.

    Results of another version of the package's files are not taken. Raises DamagedError on a file
    that was changed, and UnwritableError.
    """
    described = msgspec.json.encode(settings)
    path = folder / f"{sha256(_program() + described).hexdigest()[:16]}.json"
    if not path.exists():
        found = measure()
        write_object(path, msgspec.to_builtins({"settings": settings, "found": found}))
        return found
    repair = "delete the file, and its run is repeated"
    content = read_object(path, repair)
    try:
        return msgspec.convert(content["found"], kind, strict=False)  # keys that are numbers
    except (KeyError, msgspec.ValidationError) as error:
        raise DamagedError(f"{path}: is damaged ({error})", repair, path) from None


@cache
def _program() -> bytes:
    """Digest of the package's files."""
    digest = sha256(Path(_core.__file__).read_bytes())
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
