"""How a run in Redis stands, for people; read piece by piece while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from metropolis.store.base import Inspection, Queued, RunInfo
from metropolis.store.connect import Client, warnings
from metropolis.store.encoding import cluster_of
from metropolis.types import AgentId, Step


def inspection_of(client: Client, prefix: str, info: RunInfo) -> Inspection:
    """The keys are those of redis.py."""
    state = {name.decode(): value.decode() for name, value in _hash(client, prefix, "state")}
    seconds, microseconds = client.time()
    now_ms = seconds * 1000 + microseconds // 1000
    ready, claimed = _queues(client, prefix, now_ms)
    steps = Counter(int(step) for _, step in _hash(client, prefix, "steps"))
    blocked = {int(agent): int(by) for agent, by in _hash(client, prefix, "blocked")}
    return Inspection(
        info,
        int(state["floor"]),
        int(state["released"]),
        dict(sorted(steps.items())),
        dict(sorted(blocked.items())),
        ready,
        claimed,
        client.zcard(f"{prefix}acked"),
        sum(client.memory_usage(key, samples=0) or 0 for key in keys_of(client, prefix)),
        state.get("holder"),
        max(0, int(state.get("until_ms", 0)) - now_ms) / 1000,
        {name.decode(): int(value) for name, value in _hash(client, prefix, "counts")},
        warnings(client.info("persistence")),
    )


def _hash(client: Client, prefix: str, name: str) -> Iterator[tuple[bytes, bytes]]:
    yield from client.hgetall(f"{prefix}{name}").items()


def _queues(client: Client, prefix: str, now_ms: int) -> tuple[list[Queued], list[Queued]]:
    leases = dict(client.zrange(f"{prefix}leases", 0, -1, withscores=True))
    workers = dict(_hash(client, prefix, "claims"))
    ready, claimed = [], []
    for name, text in _hash(client, prefix, "clusters"):
        cluster = cluster_of(text.decode())
        if name in workers:
            worker = workers[name].decode().partition(" ")[2]
            left_s = max(0.0, leases.get(name, 0) - now_ms) / 1000
            claimed.append(Queued(cluster.step, cluster.agents, worker, left_s))
        else:
            ready.append(Queued(cluster.step, cluster.agents))
    return sorted(ready, key=_by_step), sorted(claimed, key=_by_step)


def _by_step(queued: Queued) -> tuple[Step, tuple[AgentId, ...]]:
    return queued.step, queued.agents


def keys_of(client: Client, prefix: str) -> Iterator[bytes]:
    """All keys of a run."""
    literal = "".join(f"\\{sign}" if sign in "*?[]^\\" else sign for sign in prefix)
    yield from client.scan_iter(match=f"{literal}*", count=1000)
