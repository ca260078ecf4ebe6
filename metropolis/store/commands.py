"""The Redis protocol of frequent calls, independent of the transport (a thread or an event loop):
each call is a generator that yields commands and receives replies.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import msgspec

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.base import Acknowledged, StoreError
from metropolis.store.claim import Claim, cluster_id
from metropolis.store.decoding import acknowledged_in, arguments_of, claims_of, order_of
from metropolis.store.encoding import EncodedCommit, answer_field, cluster_text, purchase
from metropolis.store.execution import PaidAnswers
from metropolis.store.restarts import Confirmed
from metropolis.types import AgentId, Dispatch, Step

WAIT_S = 1.0
"""A wait is repeated at this interval; well below the timeout of connections."""
POLL_S = 0.02
"""Interval at which a worker looks for clusters that other workers ran last: the dispatch of such a
cluster notifies only those workers."""
INBOX_COUNT = 1 << 30
"""A count of items that takes the whole list."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run."""

    name: str
    arguments: Sequence[Any]


@dataclass(frozen=True, slots=True)
class BlockingCommand:
    """A command that may block its connection."""

    arguments: Sequence[Any]


Call = Generator[Script | BlockingCommand, Any, T]


def claims(
    prefix: str,
    worker: str,
    lease_s: float,
    wait_s: float,
    affinity: Step,
    most: int,
    own: bool,
    number: int,
) -> Call[list[Claim]]:
    """See Store; a call with the `number` of one whose reply was lost gets the same clusters."""
    deadline_s = time.monotonic() + wait_s
    while True:
        left_s = min(deadline_s - time.monotonic(), WAIT_S if own else POLL_S)
        arguments = number, worker, ms(lease_s), affinity, most, int(own), max(0, ms(left_s))
        found = yield Script("claim", arguments)
        if isinstance(found, list):
            return claims_of(worker, found)
        left_s = min(left_s, deadline_s - time.monotonic())
        if found >= 0:
            left_s = min(left_s, found / 1000)
        if wait_s <= 0 or deadline_s <= time.monotonic():
            return []
        places = f"{prefix}inbox:{worker}", f"{prefix}tokens"
        popped = yield BlockingCommand(
            ("BLMPOP", max(0.001, left_s), 2, *places, "LEFT", "COUNT", INBOX_COUNT)
        )
        if popped is not None and popped[0].decode() == places[0]:
            found = claims_of(worker, popped[1])
            if all(claim.number == number for claim in found):
                return found  # otherwise a restarted server still had what an earlier call got


def keep_answer(key: Key, completion: Completion, buyer: str) -> Call[None]:
    """See Store."""
    encoded = answer_field(buyer, key), msgspec.json.encode(completion)
    yield Script("answer", (key.agent, key.step, *encoded, *_sums({key: completion}, buyer)))


def commit(
    claim: Claim,
    written: EncodedCommit,
    answers: PaidAnswers,
    buyer: str,
    lease_s: float | None,
    *,
    keeps: bool,
) -> Call[Claim | bool]:
    """See Store; `keeps`: whether to keep the answers, as the run is retractable."""
    lease_ms = -1 if lease_s is None else ms(lease_s)
    about = claim.id, cluster_text(claim), claim_token(claim), lease_ms, claim.until
    sums = _sums(answers, buyer)
    kept = list(answers.items() if keeps else ())
    what = [written.acknowledgement, *arguments_of(written), *sums, len(kept)]
    for key, completion in kept:
        what += key.agent, answer_field(buyer, key), msgspec.json.encode(completion)
    found = yield Script("commit", (*about, *what))
    return claims_of(claim.worker, found)[0] if isinstance(found, list) else bool(found)


def _sums(answers: PaidAnswers, buyer: str) -> list[Any]:
    """The purchases: number of sums, then the name and increment of each."""
    bought = [purchase(buyer, *answer).items() for answer in answers.items()]
    return [sum(map(len, bought)), *chain.from_iterable(chain.from_iterable(bought))]


def acknowledgements(
    prefix: str, run: str, confirmed: Confirmed, after: str, wait_s: float, most: int
) -> Call[list[Acknowledged]]:
    """See Store; `confirmed` remembers the last one."""
    deadline_s = time.monotonic() + wait_s
    while True:
        left_s = min(deadline_s - time.monotonic(), WAIT_S)
        block = ("BLOCK", max(1, ms(left_s))) if left_s > 0 else ()
        found = yield BlockingCommand(
            ("XREAD", "COUNT", most, *block, "STREAMS", f"{prefix}acks", after)
        )
        if acknowledged := acknowledged_in(found):
            confirmed.read(acknowledged[-1].id)
            return acknowledged
        if left_s > 0 and time.monotonic() < deadline_s:
            continue
        last = yield Script("nodes", (1,))
        if order_of(after) > order_of(last[0].decode()):
            raise StoreError(
                f"{run} knows of no acknowledgement {after}; the server has lost its newest commits"
            )
        return []


def dispatch(
    fence: int,
    clusters: Sequence[Dispatch],
    edges: Mapping[AgentId, AgentId | None],
    floor: Step,
    reaches: Mapping[AgentId, str],
) -> Call[None]:
    """See Store; `reaches` encodes the agents' lookahead."""
    arguments: list[Any] = [fence, floor, len(clusters)]
    for cluster in clusters:
        arguments += cluster_id(cluster), cluster_text(cluster)
    arguments += len(reaches), *chain.from_iterable(reaches.items())
    arguments.append(len(edges))
    for agent, blocker in edges.items():
        arguments += agent, "" if blocker is None else blocker
    yield Script("dispatch", arguments)


def ms(seconds: float) -> int:
    """Convert to whole milliseconds."""
    return round(seconds * 1000)


def new_call_number() -> int:
    """A unique number for a call, so that it can be resent after a lost reply."""
    return secrets.randbits(53)


def claim_token(claim: Claim) -> str:
    """The claim as the scripts identify it."""
    return f"{claim.number} {claim.worker}"
