"""The state machine of one exchange: a request, and its answer from one or several engines.

It does no I/O and has no clock. A driver reports every event, with its time, and does what the
state requires: it places a waiting request, sends `body` to the engine that has it, reads the
answer, and sends `data_to_send()` to the client. Any event that the table lacks is an error.

| event     | QUEUED, PREEMPTED, MOVED | PREFILL                  | STREAMING                   |
|-----------|--------------------------|--------------------------|-----------------------------|
| placed    | PREFILL                  | -                        | -                           |
| answered  | -                        | STREAMING; DONE if whole | -                           |
|           |                          | or refused; MOVED if the |                             |
|           |                          | engine is too busy       |                             |
| piece     | -                        | -                        | STREAMING; DONE if too long |
| ended     | -                        | -                        | DONE                        |
| lost      | -                        | MOVED; DONE if it fails  | MOVED; DONE if complete, or |
|           |                          |                          | if it fails                 |
| hung      | -                        | as lost                  | as lost; STREAMING if the   |
|           |                          |                          | answer cannot be resumed    |
| preempted | -                        | -                        | PREEMPTED                   |
| abandoned | DONE                     | DONE                     | DONE                        |

DONE has no events: an exchange ends once. A request waits for an engine in the first three states,
waits for its answer in PREFILL, and receives it in STREAMING.

1. An answer of which nothing has arrived is requested again when its engine is lost.
2. An answer in progress is resumed (`resumable.py`): a stream that cannot be ends with an error.
3. A request that has lost LOSSES_MAX engines ends with an error: it may be their cause.
4. An engine that is too busy for the rest of an answer (429, 503) counts as lost: the client, which
   has the beginning, cannot send the request again.
5. A preempted or hanging engine's answer is left at once: later pieces are not reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum, auto

from metropolis.gateway.errors import EngineLostError
from metropolis.gateway.passthrough import Passthrough
from metropolis.gateway.payload import Payload
from metropolis.gateway.resumable import ResumableRequest
from metropolis.gateway.stream_state import PartialAnswer

LOSSES_MAX = 5
"""Engine losses after which a request is treated as poisonous."""
TOO_BUSY = (429, 503)
BUFFERED_BYTES_MAX = 4 << 20
"""Maximum size of the text of an answer that can be resumed, and of one event of it."""


class ExchangeState(Enum):
    """See the table."""

    QUEUED = auto()
    PREFILL = auto()
    STREAMING = auto()
    PREEMPTED = auto()
    MOVED = auto()
    DONE = auto()


class Event(Enum):
    """See the table."""

    PLACED = auto()
    ANSWERED = auto()
    PIECE = auto()
    ENDED = auto()
    LOST = auto()
    HUNG = auto()
    PREEMPTED = auto()
    ABANDONED = auto()


WAITING = frozenset((ExchangeState.QUEUED, ExchangeState.PREEMPTED, ExchangeState.MOVED))
"""States of a request that needs an engine."""
_WHILE_WAITING = {
    Event.PLACED: {ExchangeState.PREFILL},
    Event.ABANDONED: {ExchangeState.DONE},
}
TABLE: Mapping[ExchangeState, Mapping[Event, Set[ExchangeState]]] = {
    **dict.fromkeys(WAITING, _WHILE_WAITING),
    ExchangeState.PREFILL: {
        Event.ANSWERED: {ExchangeState.STREAMING, ExchangeState.MOVED, ExchangeState.DONE},
        Event.LOST: {ExchangeState.MOVED, ExchangeState.DONE},
        Event.HUNG: {ExchangeState.MOVED, ExchangeState.DONE},
        Event.ABANDONED: {ExchangeState.DONE},
    },
    ExchangeState.STREAMING: {
        Event.PIECE: {ExchangeState.STREAMING, ExchangeState.DONE},
        Event.ENDED: {ExchangeState.DONE},
        Event.LOST: {ExchangeState.MOVED, ExchangeState.DONE},
        Event.HUNG: {ExchangeState.STREAMING, ExchangeState.MOVED, ExchangeState.DONE},
        Event.PREEMPTED: {ExchangeState.PREEMPTED},
        Event.ABANDONED: {ExchangeState.DONE},
    },
    ExchangeState.DONE: {},
}
"""The states that each event may lead to; events that a state lacks are illegal there."""


class IllegalEventError(Exception):
    """The driver reported an event that cannot occur in the exchange's state."""


class Exchange:
    """The exchange of `body`; its answer can be resumed if it is `resumable`."""

    def __init__(self, body: Payload, resumable: ResumableRequest | None = None) -> None:
        self.state = ExchangeState.QUEUED
        self.body = body if resumable is None else resumable.first()
        """The body for the next engine: requests the answer, or what is missing of it."""
        self.error: EngineLostError | None = None
        """Why the exchange ended without a complete answer; None if abandoned."""
        self._resumable = resumable
        self._answer: PartialAnswer | Passthrough | None = None
        """Set once an engine has begun to answer."""
        self._output = b""
        self.losses = 0
        """Number of engines lost."""
        self._placed_s = self._left_s = 0.0
        """When the current engine got the request; total time at engines left in mid-answer."""

    @property
    def started_s(self) -> float:
        """When an uninterrupted answer would have started (see `ServedRequest.started_s`)."""
        return self._placed_s - self._left_s

    @property
    def is_preemptible(self) -> bool:
        """Whether the request may be preempted now."""
        answer = self._streamed
        return answer is not None and answer.is_preemptible and not answer.is_at_its_end

    @property
    def is_at_its_end(self) -> bool:
        """Whether the client has got all of an answer but its end."""
        return self._streamed is not None and self._streamed.is_at_its_end

    @property
    def is_joined(self) -> bool:
        """Whether the client gets one answer (`whole`) although engines stream."""
        return isinstance(self._answer, PartialAnswer) and self._answer.is_joined

    @property
    def output_tokens(self) -> int:
        """The engine's count, or the number of a stream's events without one; at least 1."""
        return 1 if self._answer is None else max(1, self._answer.output_tokens)

    def data_to_send(self) -> bytes:
        """Return the next bytes of a stream for the client, once."""
        output, self._output = self._output, b""
        return output

    def whole(self) -> tuple[int, bytes]:
        """Return status and body of a joined answer, which is complete."""
        assert isinstance(self._answer, PartialAnswer)
        return self._answer.whole()

    # --- events

    def placed(self, now_s: float) -> None:
        """An engine gets the request."""
        self._check(Event.PLACED)
        self._placed_s = now_s
        self._enter(Event.PLACED, ExchangeState.PREFILL)

    def answered(self, status: int, whole: bytes | None) -> None:
        """The engine's answer has begun: a stream, or a `whole` body, which ends the exchange."""
        self._check(Event.ANSWERED)
        if self._answer is not None and (whole is not None or status != 200):
            self.losses += 1
            if status in TOO_BUSY and self.losses < LOSSES_MAX:
                self._enter(Event.ANSWERED, ExchangeState.MOVED)
            else:
                error = EngineLostError(f"the rest of an answer was refused: HTTP {status}")
                self._fail(Event.ANSWERED, error)
            return
        if whole is not None or status != 200 or self._resumable is None:
            self._answer = Passthrough(whole or b"")
        elif self._answer is None:
            self._answer = PartialAnswer(self._resumable)
        state = ExchangeState.STREAMING if whole is None else ExchangeState.DONE
        self._enter(Event.ANSWERED, state)

    def piece(self, piece: bytes) -> None:
        """A piece of the stream has arrived."""
        self._check(Event.PIECE)
        assert self._answer is not None
        output = self._answer.take(piece)
        if self._answer.held_bytes > BUFFERED_BYTES_MAX:
            sentence = f"an answer has more than {BUFFERED_BYTES_MAX:,} bytes of text or event"
            self._fail(Event.PIECE, EngineLostError(sentence, is_final=True))
            return
        self._send(output)
        self._enter(Event.PIECE, ExchangeState.STREAMING)

    def ended(self) -> None:
        """The stream has ended regularly."""
        self._check(Event.ENDED)
        assert self._answer is not None
        self._send(self._answer.rest_of_event())
        self._enter(Event.ENDED, ExchangeState.DONE)

    def lost(self, error: EngineLostError, now_s: float) -> None:
        """The engine was lost, or its answer is invalid."""
        self._check(Event.LOST)
        self._leave(Event.LOST, error, now_s)

    def hung(self, error: EngineLostError, now_s: float) -> None:
        """The engine hangs; an answer that cannot be resumed stays there."""
        self._check(Event.HUNG)
        answer = self._answer
        if self.state is ExchangeState.PREFILL or (answer is not None and answer.can_resume):
            self._leave(Event.HUNG, error, now_s)

    def preempted(self, now_s: float) -> None:
        """The policy preempts the request, which `is_preemptible`."""
        self._check(Event.PREEMPTED)
        assert isinstance(self._answer, PartialAnswer)
        self._request_rest(self._answer, now_s)
        self._enter(Event.PREEMPTED, ExchangeState.PREEMPTED)

    def abandoned(self) -> None:
        """The client has left, or the request cannot be placed."""
        self._check(Event.ABANDONED)
        self._enter(Event.ABANDONED, ExchangeState.DONE)

    # --- transitions

    @property
    def _streamed(self) -> PartialAnswer | Passthrough | None:
        """The answer, while it is streamed."""
        return self._answer if self.state is ExchangeState.STREAMING else None

    def _check(self, event: Event) -> None:
        if event not in TABLE[self.state] or (event is Event.PREEMPTED and not self.is_preemptible):
            raise IllegalEventError(f"{event.name} in state {self.state.name}")

    def _enter(self, event: Event, state: ExchangeState) -> None:
        assert state in TABLE[self.state][event], f"{self.state} {event} {state}"
        self.state = state

    def _leave(self, event: Event, error: EngineLostError, now_s: float) -> None:
        """Leave an engine without the end of its answer: the request moves or ends."""
        answer = self._streamed
        if answer is not None and answer.is_at_its_end:
            self._send(answer.ending())
            self._enter(event, ExchangeState.DONE)
            return
        self.losses += 1
        if error.is_final or self.losses == LOSSES_MAX:
            self._fail(event, error)
        elif answer is None:
            self._enter(event, ExchangeState.MOVED)
        elif isinstance(answer, PartialAnswer) and answer.can_resume:
            self._request_rest(answer, now_s)
            self._enter(event, ExchangeState.MOVED)
        else:
            self._fail(event, error)

    def _fail(self, event: Event, error: EngineLostError) -> None:
        self.error = error
        self._enter(event, ExchangeState.DONE)

    def _request_rest(self, answer: PartialAnswer, now_s: float) -> None:
        self._left_s += now_s - self._placed_s
        self.body = answer.rest()

    def _send(self, data: bytes) -> None:
        if not self.is_joined:
            self._output += data
