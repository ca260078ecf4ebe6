"""Bounds the cost of decoding a JSON text without decoding it.

Decoding holds the GIL throughout: 16 MiB of empty lists take 0.7 s and some 400 MB. So the depth
and the number of values are bounded first. Texts are scanned in pieces, each in a short time.
"""

from __future__ import annotations

import numpy as np

from metropolis.types import MetropolisError

DEPTH_MAX = 64
"""Maximum nesting of arrays and objects."""
WEIGHT_MAX = 1 << 20
"""Maximum total weight: numbers weigh 1, strings 4, arrays, objects and members of objects 16."""
STRING_WEIGHT, STRUCTURE_WEIGHT = 4, 16
PIECE_BYTES = 256 << 10
_OTHERS = bytes(set(range(256)) - set(b'"[]{},:'))
_NO_BRACKETS = b",:"


def check_shape(text: bytes) -> None:
    """Raise MetropolisError if `text`, when it is JSON, is too costly to decode."""
    opening = text.count(b"[") + text.count(b"{")
    structures = STRUCTURE_WEIGHT * (opening + text.count(b":"))
    weight = structures + STRING_WEIGHT * text.count(b'"') + text.count(b",")
    if opening > DEPTH_MAX or weight > WEIGHT_MAX:  # an upper bound: it includes strings
        _check_pieces(text)


def _check_pieces(text: bytes) -> None:
    weight = depth = begin = 0
    is_string = False
    while begin < len(text):
        end = _end(text, begin)
        bare = text[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
        begin = end
        quotes = bare.count(b'"')
        weight += STRING_WEIGHT * quotes // 2
        outside = b"".join(bare.split(b'"')[is_string::2])
        is_string ^= bool(quotes % 2)
        opening = outside.count(b"[") + outside.count(b"{")
        weight += STRUCTURE_WEIGHT * (opening + outside.count(b":")) + outside.count(b",")
        if weight > WEIGHT_MAX:
            raise MetropolisError(
                "the body has too many values; send fewer, at most "
                f"{WEIGHT_MAX:,} where a string counts as {STRING_WEIGHT} and an array, an object "
                f"or a member of one as {STRUCTURE_WEIGHT}"
            )
        deepest, depth = _depths(outside.translate(None, _NO_BRACKETS), depth)
        if deepest > DEPTH_MAX:
            raise MetropolisError(
                f"the body is nested too deep; nest at most {DEPTH_MAX} arrays and objects"
            )


def _end(text: bytes, begin: int) -> int:
    """Return the end of the piece from `begin`, which never splits an escape sequence."""
    piece = text[begin : begin + PIECE_BYTES]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return begin + len(piece) + backslashes % 2


def _depths(brackets: bytes, depth: int) -> tuple[int, int]:
    """Return the greatest and the last depth of `brackets`, which start at `depth`."""
    if not brackets:
        return depth, depth
    codes = np.frombuffer(brackets, np.uint8)
    steps = np.where((codes == ord("[")) | (codes == ord("{")), 1, -1)
    depths = depth + np.cumsum(steps)
    return int(depths.max()), int(depths[-1])
