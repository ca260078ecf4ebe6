"""The store in Redis (7 or later) or Valkey.

All keys of a run begin with `metropolis:{RUN}:`; the braces keep them together on one server.

    info            JSON: RunInfo
    state           hash: fence, holder, until_ms (the controller's lease); floor, released,
                    newest (the greatest step of any agent), kept_step, mark (of its beginning)
    counts          hash: what has happened how often
    steps           hash: agent -> step
    places          hash: agent -> JSON: its position
    around          hash: agent -> the cells it may read, parted by spaces
    minds           hash: agent -> JSON: its mind as it begins its step
    homes           hash: agent -> "number worker" of the claim that committed it last; not while
                    it is claimed
    kept            hash: agent -> JSON: its mind as it began kept_step
    memo:AGENT      hash: JSON: Key -> JSON: Completion; answers for the step it is at
    bought          hash: "calls BUYER FUNCTION", and so prompt_tokens and output_tokens -> sum
    blocked         hash: agent -> the agent it is blocked by
    clusters        hash: id ("step:first agent") -> "step agent agent …", of what is dispatched
    busy            hash: agent -> id of the cluster it is dispatched in
    ready           sorted set: id by step
    tokens          list: one for every ready cluster, for waiting workers
    claims          hash: id -> "number worker"
    numbers         hash: number of a claim -> id
    leases          sorted set: id by the time (ms) at which the claim runs out
    acks            stream: outcome -> JSON: Outcome
    acked           sorted set: entry of acks by step
    sinces          hash: entity -> the steps since which its versions are seen, ascending
    bodies          hash: "since entity" -> cell, newline, JSON: the entity; no JSON: it is gone
    cell:CELL       hash: entity -> how many versions of it lie there
    stale           sorted set: entity by the step below which something of it can be dropped
    events:STEP     hash: cell -> lines of JSON: what STEP perceives there

Agents are ids, times are the server's. Every change is one script in lua/, and each may be sent
again when its reply was lost: redis-py does so after a timeout.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
import redis

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store.base import (
    Acknowledged,
    Claim,
    FencedOutError,
    Inspection,
    Nodes,
    RunInfo,
    Store,
    StoreError,
)
from metropolis.store.cells import Cells
from metropolis.store.connect import Client, shown, speaking
from metropolis.store.encoding import (
    cluster_id,
    cluster_of,
    cluster_text,
    events_of,
    info_of,
    minds_of,
    position_of,
    purchase,
    purchases_of,
    slice_of,
    written_at_first,
    written_by,
)
from metropolis.store.outcome import Outcome, outcome_from_json
from metropolis.store.reading import inspection_of
from metropolis.store.replies import (
    arguments_of,
    claim_of,
    entries_of,
    lines_of,
    order_of,
    pairs_of,
    versions_of,
)
from metropolis.store.scripts import call
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.entities import Entity, Event

WAIT_S = 1.0
"""A wait asks anew so often; well below the timeout of connections."""


def prefix_of(run: str) -> str:
    """What the keys of a run begin with. Raises StoreError on a name that would not tell."""
    if not run or set(run) & set("{}\n"):
        raise StoreError(f"{run!r} is no name of a run; it should be a text without braces")
    return f"metropolis:{{{run}}}:"


class RedisStore(Store):
    """See Store."""

    def __init__(self, client: Client, url: str, run: str) -> None:
        self._client, self._url, self._name = client, url, run
        self._prefix = prefix_of(run)
        self._known: tuple[RunInfo, Cells] | None = None

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        where = shown(self._url)
        with speaking(self._url):
            try:
                yield
            except redis.ResponseError as error:
                code, _, rest = str(error).partition(" ")
                if code == "NORUN":
                    raise StoreError(f"{where}: there is no run {self._name!r}") from None
                if code == "FENCED":
                    raise FencedOutError(
                        f"{where}: the run {self._name!r} was taken over by {rest}"
                    ) from None
                if code == "HELD":
                    raise StoreError(f"{where}: the run {self._name!r} is held by {rest}") from None
                if code == "APART":
                    raise ValueError(
                        f"{cluster_of(rest)}: not all agents are at its step"
                    ) from None
                raise

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._speaking():
            return call(self._client, name, self._prefix, *arguments)

    def _run(self) -> tuple[RunInfo, Cells]:
        if self._known is None:
            with self._speaking():
                encoded = self._client.get(f"{self._prefix}info")
            if encoded is None:
                raise StoreError(f"{shown(self._url)}: there is no run {self._name!r}")
            info = info_of(encoded)
            self._known = info, Cells(info)
        return self._known

    # --- the run

    def begin(
        self,
        info: RunInfo,
        entities: Iterable[Entity],
        minds: Mapping[AgentId, Any],
        events: Iterable[Event] = (),
    ) -> None:
        """See Store."""
        written = written_at_first(Cells(info), info, entities, minds, events)
        content = msgspec.json.encode(info), info.first_step, *arguments_of(written)
        if not self._call("begin", _number(), *content):
            raise StoreError(
                f"{shown(self._url)}: the run {self._name!r} exists; resume or remove it"
            )

    def info(self) -> RunInfo:
        """See Store."""
        return self._run()[0]

    # --- the controller

    def take_lease(self, holder: str, ttl_s: float) -> int:
        """See Store."""
        return int(self._call("lease", "take", holder, _ms(ttl_s)))

    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """See Store."""
        self._call("lease", "renew", fence, _ms(ttl_s))

    def release_lease(self, fence: int) -> None:
        """See Store."""
        self._call("lease", "release", fence)

    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
    ) -> None:
        """See Store."""
        arguments: list[Any] = [fence, floor, len(clusters)]
        for cluster in clusters:
            arguments += cluster_id(cluster), cluster_text(cluster)
        arguments.append(len(edges))
        for agent, blocker in edges.items():
            arguments += agent, "" if blocker is None else blocker
        self._call("dispatch", *arguments)

    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """See Store."""
        deadline_s = time.monotonic() + wait_s
        stream = f"{self._prefix}acks"
        while True:
            left_s = min(deadline_s - time.monotonic(), WAIT_S)
            block = ("BLOCK", max(1, _ms(left_s))) if left_s > 0 else ()
            with self._speaking():
                found = self._client.execute_command(
                    "XREAD", "COUNT", most, *block, "STREAMS", stream, after
                )
            entries = entries_of(found)
            if entries:
                return [Acknowledged(i.decode(), outcome_from_json(line)) for i, line in entries]
            if left_s > 0 and time.monotonic() < deadline_s:
                continue
            if order_of(after) > order_of(self._call("nodes", 1)[0].decode()):
                raise StoreError(
                    f"{shown(self._url)}: the run {self._name!r} knows of no "
                    f"acknowledgement {after}; the server has lost its newest commits"
                )
            return []

    def nodes(self) -> Nodes:
        """See Store."""
        last, steps, places = self._call("nodes", 0)
        by_agent = {int(agent): int(step) for agent, step in pairs_of(steps)}
        place_of = {int(agent): place for agent, place in pairs_of(places)}
        agents = sorted(by_agent)
        return Nodes(
            last.decode(),
            [by_agent[agent] for agent in agents],
            [position_of(place_of[agent]) for agent in agents],
        )

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Store."""
        versions, lines = self._call("world", step)
        seen = slice_of(step, versions_of(versions), ()).versions
        return [entity for _, entity in seen], events_of(lines_of(lines))

    def release(self, fence: int, below: Step) -> None:
        """See Store."""
        self._call("release", fence, below)

    def keep_minds(self, fence: int, step: Step) -> bool:
        """See Store."""
        return bool(self._call("keep", fence, step))

    def kept_minds(self) -> dict[AgentId, Any]:
        """See Store."""
        with self._speaking():
            kept = self._client.hgetall(f"{self._prefix}kept")
        return minds_of((int(agent), mind) for agent, mind in kept.items())

    # --- workers

    def claim(
        self, worker: str, lease_s: float, wait_s: float = 0.0, affinity: Step = 0
    ) -> Claim | None:
        """See Store."""
        deadline_s = time.monotonic() + wait_s
        number, token = _number(), None
        while True:
            has_token = int(token is not None)
            found = self._call("claim", number, worker, _ms(lease_s), affinity, has_token)
            if isinstance(found, list):
                return claim_of(number, worker, found)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            waits = [left_s, WAIT_S] if found < 0 else [left_s, WAIT_S, found / 1000]
            with self._speaking():
                token = self._client.blpop([f"{self._prefix}tokens"], max(0.001, min(waits)))

    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """See Store."""
        wanted = list(agents)
        with self._speaking():
            found = self._client.hmget(f"{self._prefix}minds", wanted) if wanted else []
        return minds_of(zip(wanted, found, strict=True))

    def extend(self, claim: Claim, lease_s: float) -> bool:
        """See Store."""
        return bool(self._call("hold", claim.id, _mark(claim), _ms(lease_s)))

    def give_back(self, claim: Claim) -> None:
        """See Store."""
        self._call("hold", claim.id, _mark(claim), -1)

    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """See Store."""
        encoded = msgspec.json.encode(key), msgspec.json.encode(completion)
        sums = purchase(buyer, key, completion)
        self._call("answer", key.agent, key.step, *encoded, *chain.from_iterable(sums.items()))

    def commit(self, claim: Claim, outcome: Outcome, minds: Mapping[AgentId, Any]) -> bool:
        """See Store."""
        info, cells = self._run()
        written = written_by(cells, info, claim, outcome, minds)
        about = claim.id, cluster_text(claim), _mark(claim), written.acknowledgement
        return bool(self._call("commit", *about, *arguments_of(written)))

    # --- readers

    def bought(self) -> list[Purchases]:
        """See Store."""
        with self._speaking():
            sums = self._client.hgetall(f"{self._prefix}bought")
        return purchases_of({name.decode(): int(sum_) for name, sum_ in sums.items()})

    def inspect(self) -> Inspection:
        """See Store."""
        info, _ = self._run()
        with self._speaking():
            return inspection_of(self._client, self._prefix, info)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _number() -> int:
    """Tells a call from all others, so that it can be sent again when its reply was lost."""
    return secrets.randbits(53)


def _mark(claim: Claim) -> str:
    return f"{claim.number} {claim.worker}"
