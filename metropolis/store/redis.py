"""The store in Redis (7 or later) or Valkey.

All keys of a run begin with `metropolis:{RUN}:`; the braces keep them together on one server.

    info            JSON: RunInfo
    state           hash: fence, holder, until_ms (the controller's lease); server (the id of the
                    server that the controller knows), restarts (of the server, if any), lossy
                    (the id of one that has lost what the controller knows), changes (number of
                    its effective calls of dispatch, collect, keep, retract since it took the
                    lease); floor, released,
                    newest (the greatest step an agent has had), kept_step, mark (of its
                    beginning), retractable (1: yes)
    counts          hash: event -> number of occurrences
    nodes           hash: agent -> step, position as JSON, the cells it may read separated by
                    spaces; one line each
    mind:AGENT      hash: name -> JSON: a part of its mind at the beginning of its step
    homes           hash: agent -> "number worker" of the claim that committed it last, with a
                    newline if that had expired; absent while it is claimed, except by a worker
                    that continues
    ahead           hash: agent -> "until cell cell …": the step up to which it can continue alone,
                    and the cells it may read until then
    kept:AGENT      hash: its mind, as mind:AGENT, at the beginning of kept_step
    memo:STEP:AGENT hash: buyer and JSON: Key -> JSON: Completion; its answers in the step
    memos:STEP      set: the agents with answers in the step
    before:STEP     hash: agent -> MessagePack: what its commit of the step has replaced, the
                    commit's acks entry, members and written entities; if the run is retractable
    bought          hash: "calls BUYER FUNCTION", likewise prompt_tokens, output_tokens -> sum
    blocked         hash: agent -> the agent that blocks it
    clusters        hash: id ("step:first agent") -> "step agent agent …", if dispatched
    busy            hash: agent -> id of the cluster it is dispatched in
    ready           sorted set: id by step
    tokens          list: one for every ready cluster that no worker ran last, to wake waiters
    asking          hash: worker -> "until (ms) number lease (ms) most", of its waiting call
    inbox:WORKER    list: clusters dispatched meanwhile and claimed for that call, described as
                    in claiming.lua
    claims          hash: id -> "number worker"
    lasts           hash: worker -> "number id id …" of its last call
    leases          sorted set: id by the time (ms) at which the claim expires
    acks            stream: execution -> JSON: Execution; continues -> 1: next step dispatched
    acked           sorted set: entry of acks by step
    sinces          hash: entity -> "since@cell since@cell …": the first step of each version,
                    and its cell; no cell: it is gone
    bodies          hash: "since entity" -> JSON: the entity; empty: it is gone
    cell:CELL       set: the entities with a version in the cell
    stale           sorted set: entity by the step below which a part of it can be dropped
    events:STEP     hash: cell -> lines of JSON: what STEP perceives there

A server that was restarted may have lost its newest commits, while the processes of the run know
them. Its id differs then from `server`, and every change is refused until the controller has
compared what it knows (accept.lua).

Agents are ids, times are the server's. Every change is one script in lua/, and each call may be
resent after a lost reply: redis-py resends after a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import redis

from metropolis.addresses import shown
from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.llm.usage import Purchases
from metropolis.store import commands
from metropolis.store.async_redis_store import AsyncRedisStore, CommandStore
from metropolis.store.base import (
    Acknowledged,
    AsyncStore,
    FencedOutError,
    Inspection,
    Nodes,
    RunInfo,
    StoreError,
    StoreUnavailableError,
)
from metropolis.store.cells import Cells
from metropolis.store.claim import NO_LOOKAHEAD, Claim, Lookahead
from metropolis.store.commands import claim_token, ms, new_call_number
from metropolis.store.connect import Client, store_errors
from metropolis.store.decoding import arguments_of, lines_of, pairs_of, versions_of
from metropolis.store.encoding import (
    EncodedCommit,
    answers_of,
    cluster_of,
    decode_events,
    decode_snapshot,
    encode_commit,
    encode_initial_state,
    position_of,
    purchases_of,
)
from metropolis.store.execution import NO_ANSWERS, Execution, PaidAnswers
from metropolis.store.redis_inspection import damage_reported, inspection_of
from metropolis.store.restarts import RESTARTED, Confirmed
from metropolis.store.scripts import call
from metropolis.types import AgentId, Dispatch, Step
from metropolis.world.entities import Entity, Event
from metropolis.world.parts import from_parts

T = TypeVar("T")
_REFUSALS: Mapping[str, tuple[type[StoreError], str]] = {
    "NORUN": (StoreError, "there is no run {name!r}"),
    "FENCED": (FencedOutError, "the run {name!r} was taken over by {rest}"),
    "HELD": (StoreError, "the run {name!r} is held by {rest}"),
    RESTARTED: (
        StoreUnavailableError,
        "the server was restarted, and the controller of the run {name!r} has not confirmed yet "
        "that nothing is lost",
    ),
    "LOST": (
        StoreError,
        "the server was restarted and has lost its newest commits of the run {name!r}; resume it",
    ),
    "FINAL": (StoreError, "commits of the run {name!r} are final; it was not begun as retractable"),
    "COLLECTED": (StoreError, "only steps from {rest} of the run {name!r} are retractable"),
}
"""The first word of a script's error -> exception and sentence, with `rest`: the other words."""


def prefix_of(run: str) -> str:
    """The prefix of the run's keys. Raises StoreError on a name that would be ambiguous."""
    if not run or set(run) & set("{}\n"):
        raise StoreError(f"a run cannot be named {run!r}; its name should be a text without braces")
    return f"metropolis:{{{run}}}:"


class RedisStore(CommandStore):
    """See Store."""

    def __init__(self, client: Client, url: str, run: str) -> None:
        self._client, self.url, self._name = client, url, run
        self.prefix = prefix_of(run)
        self.shown = f"{shown(url)}: the run {run!r}"
        self._known: tuple[RunInfo, Cells] | None = None
        self.confirmed = Confirmed()

    @contextmanager
    def store_errors(self) -> Iterator[None]:
        """Convert the server's errors to StoreErrors."""
        with store_errors(self.url):
            try:
                yield
            except redis.ResponseError as error:
                code, _, rest = str(error).partition(" ")
                if code == "APART":
                    raise ValueError(
                        f"{cluster_of(rest)}: not all agents are at its step"
                    ) from None
                if code in _REFUSALS:
                    kind, sentence = _REFUSALS[code]
                    sentence = sentence.format(name=self._name, rest=rest)
                    raise kind(f"{shown(self.url)}: {sentence}") from None
                raise

    def _call(self, name: str, *arguments: Any) -> Any:
        with self.store_errors():
            try:
                found = call(self._client, name, self.prefix, *arguments)
            except redis.ResponseError as error:
                if not self.confirmed.may_accept(name, error):
                    raise
                call(self._client, *self.confirmed.accept(self.prefix))
                found = call(self._client, name, self.prefix, *arguments)
            return self.confirmed.result(name, found)

    def _do(self, steps: commands.Call[T]) -> T:
        reply = None
        try:
            while True:
                with damage_reported(self.shown):
                    command = steps.send(reply)
                if isinstance(command, commands.Script):
                    reply = self._call(command.name, *command.arguments)
                else:
                    with self.store_errors():
                        reply = self._client.execute_command(*command.arguments)
        except StopIteration as end:
            found: T = end.value
            return found

    def _run(self) -> tuple[RunInfo, Cells]:
        if self._known is None:
            with self.store_errors():
                encoded = self._client.get(f"{self.prefix}info")
            if encoded is None:
                raise StoreError(f"{shown(self.url)}: there is no run {self._name!r}")
            with damage_reported(self.shown):
                info = msgspec.json.decode(encoded, type=RunInfo)
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
        written = encode_initial_state(Cells(info), info, entities, minds, events)
        about = msgspec.json.encode(info), int(info.retractable), info.first_step
        content = *about, *arguments_of(written)
        if not self._call("begin", new_call_number(), *content):
            raise StoreError(
                f"{shown(self.url)}: the run {self._name!r} exists; resume or remove it"
            )

    def info(self) -> RunInfo:
        """See Store."""
        return self._run()[0]

    # --- the controller

    def take_lease(self, holder: str, ttl_s: float) -> int:
        """See Store."""
        fence = int(self._call("lease", "take", holder, ms(ttl_s)))
        self.confirmed = Confirmed(fence)
        return fence

    def renew_lease(self, fence: int, ttl_s: float) -> None:
        """See Store."""
        self._call("lease", "renew", fence, ms(ttl_s))

    def release_lease(self, fence: int) -> None:
        """See Store."""
        self._call("lease", "release", fence)

    def set_last_step(self, fence: int, last_step: Step) -> None:
        """See Store."""
        info = replace(self.info(), last_step=last_step)
        self._call("describe", fence, msgspec.json.encode(info))
        self._known = info, self._run()[1]

    def dispatch(
        self,
        fence: int,
        clusters: Sequence[Dispatch],
        edges: Mapping[AgentId, AgentId | None],
        floor: Step,
        ahead: Mapping[AgentId, Lookahead] = NO_LOOKAHEAD,
    ) -> None:
        """See Store."""
        self._do(commands.dispatch(fence, clusters, edges, floor, self.reaches(ahead)))

    def reaches(self, ahead: Mapping[AgentId, Lookahead]) -> dict[AgentId, str]:
        """Encode lookahead as the scripts expect it."""
        return {
            agent: f"{one.until} {self._run()[1].around_text(one.position, one.far)}"
            for agent, one in ahead.items()
        }

    def acknowledgements(self, after: str, wait_s: float, most: int = 1000) -> list[Acknowledged]:
        """See Store."""
        about = self.prefix, self.shown, self.confirmed
        return self._do(commands.acknowledgements(*about, after, wait_s, most))

    def nodes(self) -> Nodes:
        """See Store."""
        last, found, released = self._call("nodes", 0)
        self.confirmed.read(last.decode())
        agents = range(len(self.info().agents))
        with damage_reported(self.shown):
            lines = {int(agent): node.split(b"\n") for agent, node in pairs_of(found)}
            nodes = [lines[agent] for agent in agents]
            return Nodes(
                last.decode(),
                [int(step) for step, _, _ in nodes],
                [position_of(place) for _, place, _ in nodes],
                int(released),
            )

    def world(self, step: Step) -> tuple[list[Entity], list[Event]]:
        """See Store."""
        versions, lines = self._call("world", step)
        with damage_reported(self.shown):
            seen = decode_snapshot(step, versions_of(versions), ()).versions
            return [entity for _, entity in seen], decode_events(lines_of(lines))

    def collect(self, fence: int, below: Step) -> None:
        """See Store."""
        self._call("collect", fence, below)

    def retract(self, fence: int, agent: AgentId, step: Step) -> None:
        """See Store."""
        self._call("retract", fence, agent, step)

    def keep_minds(self, fence: int, step: Step) -> bool:
        """See Store."""
        return bool(self._call("keep", fence, step))

    def kept_minds(self) -> dict[AgentId, Any]:
        """See Store."""
        return self._minds("kept")

    # --- workers

    def claims(
        self,
        worker: str,
        lease_s: float,
        wait_s: float = 0.0,
        affinity: Step = 0,
        *,
        most: int = 1,
        own: bool = False,
    ) -> list[Claim]:
        """See Store."""
        asked = worker, lease_s, wait_s, affinity, most, own, new_call_number()
        return self._do(commands.claims(self.prefix, *asked))

    def minds(self, agents: Iterable[AgentId]) -> dict[AgentId, Any]:
        """See Store."""
        return self._minds("mind", agents)

    def _minds(self, kind: str, agents: Iterable[AgentId] | None = None) -> dict[AgentId, Any]:
        wanted = list(range(len(self.info().agents)) if agents is None else agents)
        with self.store_errors(), self._client.pipeline(transaction=True) as together:
            for agent in wanted:
                together.hgetall(f"{self.prefix}{kind}:{agent}")
            found = together.execute()
        self._call("nodes", 1)  # fails if the server has lost some with a restart
        with damage_reported(self.shown):
            return {
                agent: from_parts({name.decode(): body for name, body in parts.items()})
                for agent, parts in zip(wanted, found, strict=True)
                if parts
            }

    def extend(self, claim: Claim, lease_s: float) -> bool:
        """See Store."""
        return bool(self._call("hold", claim.id, claim_token(claim), ms(lease_s)))

    def give_back(self, claim: Claim) -> None:
        """See Store."""
        self._call("hold", claim.id, claim_token(claim), -1)

    def keep_answer(self, key: Key, completion: Completion, buyer: str = "") -> None:
        """See Store."""
        self._do(commands.keep_answer(key, completion, buyer))

    def answers(self, steps: Iterable[Step]) -> dict[Key, Completion]:
        """See Store."""
        wanted = list(steps)
        with self.store_errors(), self._client.pipeline(transaction=True) as together:
            for step in wanted:
                together.smembers(f"{self.prefix}memos:{step}")
            agents = together.execute()
            for step, found in zip(wanted, agents, strict=True):
                for agent in found:
                    together.hgetall(f"{self.prefix}memo:{step}:{agent.decode()}")
            memos = together.execute()
        with damage_reported(self.shown):
            return {key: answer for memo in memos for key, answer in answers_of(memo.items())}

    def commit(
        self,
        claim: Claim,
        execution: Execution,
        answers: PaidAnswers = NO_ANSWERS,
        buyer: str = "",
        lease_s: float | None = None,
    ) -> Claim | bool:
        """See Store."""
        written = self.written(claim, execution)
        keeps = self.info().retractable
        return self._do(commands.commit(claim, written, answers, buyer, lease_s, keeps=keeps))

    def written(self, claim: Claim, execution: Execution) -> EncodedCommit:
        """The writes of a commit."""
        info, cells = self._run()
        return encode_commit(cells, info, claim, execution)

    def async_store(self) -> AsyncStore:
        """See Store."""
        return AsyncRedisStore(self)

    # --- readers

    def bought(self) -> list[Purchases]:
        """See Store."""
        with self.store_errors():
            sums = self._client.hgetall(f"{self.prefix}bought")
        with damage_reported(self.shown):
            return purchases_of({name.decode(): int(sum_) for name, sum_ in sums.items()})

    def inspect(self) -> Inspection:
        """See Store."""
        info, _ = self._run()
        with self.store_errors(), damage_reported(self.shown):
            return inspection_of(self._client, self.prefix, info)
