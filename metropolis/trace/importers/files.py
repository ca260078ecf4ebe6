"""Reading of text and JSON files, plain or gzipped, with one clear sentence per error."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from metropolis.names import cut
from metropolis.types import MetropolisError


def read_text(path: Path) -> str:
    """The UTF-8 text of `path`, decompressed if it is gzip."""
    try:
        content = path.read_bytes()
        if content[:4] == b"PAR1":
            raise MetropolisError(f"{path}: is a Parquet file, perhaps a trace; it should be text")
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise MetropolisError(
            f"{path}: is a damaged gzip file ({error}); it should be intact gzip or plain text"
        ) from None
    except UnicodeDecodeError as error:
        raise MetropolisError(
            f"{path}: byte {error.start} is not UTF-8; the file should be UTF-8 text"
        ) from None
    except OSError as error:
        raise MetropolisError(
            f"{path}: cannot be read ({error.strerror or error}); it should be a readable file"
        ) from None


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict, for `json.loads(object_pairs_hook=…)`.

    Raises ValueError on a duplicate key, of which Python would keep the last value, and on a lone
    surrogate such as "\\ud800", which UTF-8 cannot encode.
    """
    content = dict(pairs)
    for text in (*content, *content.values()):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"the text {cut(text)} contains {text[error.start]!r}, a lone surrogate that "
                    "UTF-8 cannot encode"
                ) from error
    if len(content) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {cut(twice)} occurs twice in one object")
    return content


def read_json(path: Path) -> Any:
    """The JSON value in `path`."""
    try:
        return json.loads(read_text(path), object_pairs_hook=keys_once)
    except json.JSONDecodeError as error:
        raise MetropolisError(
            f"{path}, line {error.lineno}, column {error.colno}: is truncated or not JSON"
            f" ({error.msg}); it should be one complete JSON value"
        ) from None
    except (ValueError, RecursionError) as error:
        raise MetropolisError(
            f"{path}: is not readable JSON ({error}); it should be one JSON value"
        ) from None
