"""Server-sent events that arrive in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.llm.backends.sse import EventParser

LINES = st.lists(
    st.sampled_from([b"data: a", b"data:b c ", b"data:", b": note", b"id: 7", b"event: x", b"y"]),
    min_size=1,
    max_size=4,
)
ENDS = st.sampled_from([b"\n", b"\r\n"])
EVENTS = st.lists(st.tuples(LINES, ENDS), max_size=6)


@given(EVENTS, st.lists(st.integers(1, 7), min_size=1), st.sampled_from([b"", b"data: x\n"]))
def test_events_do_not_depend_on_the_pieces(
    events: list[tuple[list[bytes], bytes]], sizes: list[int], rest: bytes
) -> None:
    raws = [end.join([*lines, b"", b""]) for lines, end in events]
    stream, parser, parsed, begin = b"".join(raws) + rest, EventParser(), [], 0
    while begin < len(stream):
        size = sizes[begin % len(sizes)]
        parsed += parser.feed(stream[begin : begin + size])
        begin += size
    assert [event.raw for event in parsed] == raws
    assert [event.data for event in parsed] == [
        b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        for lines, _ in events
    ]
    assert (parser.rest, parser.held_bytes) == (rest, len(rest))


@pytest.mark.parametrize("end", [b"\n\n", b"\n\r\n"])
def test_an_empty_line_may_be_split(end: bytes) -> None:
    for cut in range(len(end)):
        parser = EventParser()
        assert parser.feed(b"data: [DONE]" + end[:cut]) == []
        (event,) = parser.feed(end[cut:])
        assert event.data == b"[DONE]"


def test_a_long_event_is_searched_once() -> None:
    """A search from the beginning at each piece would take minutes."""
    parser = EventParser()
    for _ in range(1 << 17):
        assert parser.feed(b"x" * 64) == []
    (event,) = parser.feed(b"\n\n")
    assert len(event.raw) == (64 << 17) + 2
