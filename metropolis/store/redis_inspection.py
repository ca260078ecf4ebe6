"""A human-readable snapshot of a run in Redis, even while it is in progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from metropolis.store.base import Inspection, Queued, RunInfo, StoreError
from metropolis.store.connect import Client, warnings
from metropolis.store.encoding import cluster_of


@contextmanager
def damage_reported(run: str) -> Iterator[None]:
    """Raise what decoding values raises as StoreError; `run` begins the sentence."""
    try:
        yield
    except (LookupError, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise StoreError(
            f"{run} is damaged, or its keys were not written by metropolis "
            f"({type(error).__name__}: {error}); resume it with store memory, from its last "
            "checkpoint, or remove it with metropolis store rm"
        ) from error


def inspection_of(client: Client, prefix: str, info: RunInfo) -> Inspection:
    """The keys are those of redis.py; all but the memory size is read atomically."""
    names = "state", "nodes", "blocked", "clusters", "claims", "counts"
    with client.pipeline(transaction=True) as pipeline:
        for name in names:
            pipeline.hgetall(f"{prefix}{name}")
        pipeline.zrange(f"{prefix}leases", 0, -1, withscores=True)
        pipeline.zcard(f"{prefix}acked")
        pipeline.time()
        *hashes, leases, acknowledgements, (seconds, microseconds) = pipeline.execute()
    state, nodes, blocked, clusters, claims, counts = map(_decoded, hashes)
    now_ms = seconds * 1000 + microseconds // 1000
    until_ms = {name.decode(): end for name, end in leases}
    ready, claimed = _queues(clusters, claims, until_ms, now_ms)
    blocked_by = {int(agent): int(blocked[agent]) for agent in sorted(blocked, key=int)}
    queued = (agent for cluster in (*ready, *claimed) for agent in cluster.agents)
    for agent in (*blocked_by, *blocked_by.values(), *queued):
        _ = info.agents[agent]  # raises IndexError
    left_s = max(0, int(state.get("until_ms", 0)) - now_ms) / 1000
    return Inspection(
        info,
        int(state["floor"]),
        int(state["released"]),
        [int(nodes[agent].partition("\n")[0]) for agent in sorted(nodes, key=int)],
        blocked_by,
        ready,
        claimed,
        acknowledgements,
        sum(client.memory_usage(key, samples=0) or 0 for key in keys_of(client, prefix)),
        state.get("holder") if left_s else None,
        left_s,
        {name: int(value) for name, value in counts.items()},
        warnings(client.info("persistence")),
    )


def _decoded(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


def _queues(
    clusters: Mapping[str, str],
    claims: Mapping[str, str],
    until_ms: Mapping[str, float],
    now_ms: int,
) -> tuple[list[Queued], list[Queued]]:
    ready, claimed = [], []
    for name, text in clusters.items():
        cluster = cluster_of(text)
        if name in claims:
            worker = claims[name].partition(" ")[2]
            left_s = max(0.0, until_ms.get(name, 0) - now_ms) / 1000
            claimed.append(Queued(cluster.step, cluster.agents, worker, left_s))
        else:
            ready.append(Queued(cluster.step, cluster.agents))
    return sorted(ready), sorted(claimed)


def keys_of(client: Client, prefix: str) -> Iterator[bytes]:
    """All keys of a run."""
    literal = "".join(f"\\{sign}" if sign in "*?[]^\\" else sign for sign in prefix)
    yield from client.scan_iter(match=f"{literal}*", count=1000)
