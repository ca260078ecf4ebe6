"""run.json and store.json as somebody writes them who can compute a checksum."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32


def forged(content: Mapping[str, Any]) -> bytes:
    """The file with that content."""
    text = json.dumps({name: value for name, value in content.items() if name != "crc32"})
    return with_checksum(text.encode())


def with_checksum(text: bytes) -> bytes:
    """`text`, an object, with the checksum of what is between its braces."""
    return b'{"crc32":%d,%b}\n' % (crc32(text[1:-1]), text[1:-1])


def intact(text: bytes) -> bool:
    """Whether the checksum is that of the rest."""
    found = re.fullmatch(rb'\{"crc32":(0|[1-9][0-9]*),(.*)\}\n', text, re.DOTALL)
    return found is not None and int(found[1]) == crc32(found[2])


def forge(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Let `edit` change the content of a file."""
    content = json.loads(path.read_bytes())
    edit(content)
    path.write_bytes(forged(content))
