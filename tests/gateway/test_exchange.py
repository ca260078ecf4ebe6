"""The state machine of an exchange, without I/O."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metropolis.gateway.exchange as module
from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.exchange import (
    BUFFERED_BYTES_MAX,
    LOSSES_MAX,
    TABLE,
    Event,
    Exchange,
    ExchangeState,
    IllegalEventError,
)
from metropolis.gateway.resumable import ResumableRequest, resumable_request
from metropolis.gateway.routes import CHATS, COMPLETIONS
from tests.gateway.models import Model
from tests.gateway.test_stream_state import bare, bodies, decoded, read

LOST = EngineLostError("lost")
PIECES = st.sampled_from(
    (
        b"",
        b'data: {"id": "x", "choices": [{"index": 0, "text": " a"}]}\n\n',
        b'data: {"id": "x", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n',
        b"data: [DONE]\n\n",
        b'data: {"id": "x", "choi',
        b'data: {"error": {"message": "no"}}\n\n',
        b"x" * (BUFFERED_BYTES_MAX + 1),
    )
)
ERRORS = st.builds(EngineLostError, st.just("lost"), is_final=st.booleans())
WHOLE = st.none() | st.just(b"{}")
STATUSES = st.sampled_from((200, 400, 503))
EVENTS: dict[Event, Callable[[Exchange, st.DataObject], None]] = {
    Event.PLACED: lambda one, _: one.placed(1.0),
    Event.ANSWERED: lambda one, data: one.answered(data.draw(STATUSES), data.draw(WHOLE)),
    Event.PIECE: lambda one, data: one.piece(data.draw(PIECES)),
    Event.ENDED: lambda one, _: one.ended(),
    Event.LOST: lambda one, data: one.lost(data.draw(ERRORS), 2.0),
    Event.HUNG: lambda one, _: one.hung(LOST, 2.0),
    Event.PREEMPTED: lambda one, _: one.preempted(2.0),
    Event.ABANDONED: lambda one, _: one.abandoned(),
}
LIKELY = [
    *TABLE[ExchangeState.STREAMING],
    Event.PIECE,
    Event.PIECE,
    Event.ANSWERED,
    *[Event.PLACED] * 3,
]


def request(body: dict[str, Any], *, is_known: bool = True) -> ResumableRequest:
    path = CHATS if "messages" in body else COMPLETIONS
    found = resumable_request(
        path, json.dumps(body).encode(), body, preempts=True, is_known=is_known
    )
    assert found is not None
    return found


def test_it_does_no_io_and_has_no_clock() -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {"asyncio", "socket", "time"} & (names | imported)
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


def test_the_table_names_every_state_and_event() -> None:
    assert set(TABLE) == set(ExchangeState)
    assert {event for events in TABLE.values() for event in events} == set(Event)
    rows = {
        line.split("|")[1].strip() for line in (module.__doc__ or "").splitlines() if "|" in line
    }
    assert {event.name.lower() for event in Event} < rows


@given(
    st.data(),
    st.lists(st.sampled_from(LIKELY), max_size=40),
    st.sampled_from((None, False, True)),
)
def test_any_events_lead_to_legal_states_and_illegal_ones_raise(
    data: st.DataObject, events: list[Event], streams: bool | None
) -> None:
    body = {"prompt": "p", "max_tokens": 9, "stream": streams}
    exchange = Exchange(b"{}", None if streams is None else request(body))
    ends = 0
    for event in [*events, Event.ABANDONED]:
        before, is_preemptible = exchange.state, exchange.is_preemptible
        try:
            EVENTS[event](exchange, data)
        except IllegalEventError:
            assert event not in TABLE[before] or (event is Event.PREEMPTED and not is_preemptible)
            assert exchange.state is before
            continue
        assert exchange.state in TABLE[before][event]
        ends += exchange.state is ExchangeState.DONE
        assert not exchange.is_joined or exchange.data_to_send() == b""
    assert ends == 1
    assert exchange.state is ExchangeState.DONE
    for event in Event:
        with pytest.raises(IllegalEventError, match=f"{event.name} in state DONE"):
            EVENTS[event](exchange, data)


LEAVE = st.sampled_from(("preempted", "lost", "hung", "ended early"))
PLAN = st.lists(st.tuples(LEAVE, st.floats(0, 1), st.integers(1, 200)), max_size=8)


@given(st.data(), st.booleans(), st.booleans(), PLAN)
def test_the_client_gets_what_one_engine_would_have_sent(
    data: st.DataObject, chats: bool, stream: bool, plan: list[tuple[str, float, int]]
) -> None:
    """Through any number of preemptions and moves, in pieces of any size."""
    body, model = data.draw(bodies(chats=chats, stream=stream)), Model()
    exchange, sent, now_s, losses = Exchange(b"", request(body)), b"", 0.0, 0
    at_engines_s = 0.0
    parts = iter(plan)
    while exchange.state is not ExchangeState.DONE:
        how, share, size = next(parts, ("", 1.0, 50))
        if losses == LOSSES_MAX - 1 and how != "preempted":
            how = ""
        now_s += 10.0
        exchange.placed(now_s)
        if how == "ended early":
            losses += 1
            exchange.lost(LOST, now_s)
            continue
        answer = b"".join(model.events(decoded(exchange.body)))
        exchange.answered(200, None)
        end = int(share * len(answer)) if how else len(answer)
        for begin in range(0, end, size):
            exchange.piece(answer[begin : min(end, begin + size)])
            sent += exchange.data_to_send()
        now_s += 1.0
        if how == "preempted" and exchange.is_preemptible:
            exchange.preempted(now_s)
        elif how in ("lost", "hung"):
            losses += 1
            getattr(exchange, how)(LOST, now_s)
        else:
            for begin in range(end, len(answer), size):
                exchange.piece(answer[begin : begin + size])
            exchange.ended()
        at_engines_s += 1.0
        sent += exchange.data_to_send()
    assert exchange.error is None
    assert now_s - exchange.started_s == pytest.approx(at_engines_s)
    if stream:
        assert read(sent) == read(b"".join(model.events(body)))
    else:
        assert sent == b""
        status, whole = exchange.whole()
        assert (status, bare(json.loads(whole))) == (200, bare(model.whole(body)))


def test_a_request_that_loses_engines_again_and_again_ends_with_the_last_error() -> None:
    exchange = Exchange(b"{}")
    for n in range(LOSSES_MAX):
        assert exchange.state is not ExchangeState.DONE
        exchange.placed(float(n))
        [exchange.lost, exchange.hung][n % 2](EngineLostError(f"loss {n}"), n + 0.5)
    assert exchange.state is ExchangeState.DONE
    assert str(exchange.error) == f"loss {LOSSES_MAX - 1}"


def test_a_final_loss_and_a_stream_that_cannot_be_resumed_end_at_once() -> None:
    final = Exchange(b"{}")
    final.placed(0.0)
    final.lost(EngineLostError("too long", is_final=True), 1.0)
    assert (final.state, str(final.error)) == (ExchangeState.DONE, "too long")
    stream = Exchange(b"{}")
    stream.placed(0.0)
    stream.answered(200, None)
    stream.piece(b"data: {}\n\n")
    stream.hung(LOST, 1.0)
    assert stream.state is ExchangeState.STREAMING
    stream.lost(LOST, 1.0)
    assert (stream.state, stream.error) == (ExchangeState.DONE, LOST)
    assert stream.data_to_send() == b"data: {}\n\n"


@pytest.mark.parametrize(("status", "attempts"), [(400, 1), (429, LOSSES_MAX), (503, LOSSES_MAX)])
def test_the_rest_of_an_answer_may_be_refused(status: int, attempts: int) -> None:
    exchange = Exchange(b"", request({"prompt": "p", "max_tokens": 9, "stream": True}))
    exchange.placed(0.0)
    exchange.answered(200, None)
    exchange.piece(b'data: {"choices": [{"index": 0, "text": " 0"}]}\n\n')
    exchange.preempted(1.0)
    for _ in range(attempts):
        assert exchange.state is not ExchangeState.DONE
        exchange.placed(2.0)
        exchange.answered(status, b"{}")
    assert exchange.state is ExchangeState.DONE
    assert str(exchange.error) == f"the rest of an answer was refused: HTTP {status}"
