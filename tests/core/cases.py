"""The fuzzer's cases for `metropolis._core`: one function per part."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from .controller_cases import (
    controller_of,
    metric,
    use_bench,
    use_controller,
    use_left_places,
    use_metric,
)
from .draw import Draw, FindingError, RefusedError

PROFILE_FIELDS = {
    "w_ms": (0.5, 20), "g_ms": (0, 0.1), "h_ms": (0, 3), "b_ms": (0, 0.1), "k_ms": (0, 0.1),
    "q_ms": (0, 0.01), "c_ms": (0, 3), "k_mixed_ms": (0, 0.1), "d_ms": (0, 3), "e_ms": (0, 0.1),
    "pcie_gb_per_s": (0.001, 1),
    "host_gb": (1e-5, 1), "kv_capacity_tokens": (64, 512), "block_tokens": (1, 16),
    "chunk_tokens": (1, 200), "max_sequences": (1, 8), "kv_bytes_per_token": (1, 1000),
    "c_once": (0, 1),
}  # fmt: skip

CONSTRUCTED = (
    *("Profile", "Request", "InstancePool", "Replay", "Optimism", "Speculation", "LeftPlaces"),
    "Snapshot",
)


@dataclass
class Thing:
    what: Any


def profile(draw: Draw) -> Any:
    fields: dict[str, Any] = {}
    for name, (low, high) in PROFILE_FIELDS.items():
        whole = isinstance(low, int) and name not in ("host_gb",) and not name.endswith("_ms")
        fields[name] = draw.whole(low, high) if whole else draw.number(low, high)
    fields["c_once"] = draw.flag()
    if draw.random.random() < 0.1:
        fields.pop(draw.random.choice(list(fields)))
    made = draw.do("Profile", **fields)
    for name in PROFILE_FIELDS:
        draw.get(f"Profile.{name}", made)
        if draw.random.random() < 0.2:
            try:
                draw.put(f"Profile.{name}", made, fields.get(name, 1))
            except RefusedError:
                continue
    return made


def prefix(draw: Draw) -> Any:
    return draw.one_of(
        [(draw.whole(0, 3), draw.whole(1, 9)) for _ in range(draw.random.randint(0, 3))]
    )


def priorities(draw: Draw) -> Any:
    return {draw.whole(0, 20): draw.whole(0, 3) for _ in range(draw.random.randint(0, 3))}


def request(draw: Draw) -> Any:
    made = draw.do(
        "Request",
        *(draw.whole(1, 40), draw.whole(1, 20), draw.whole(0, 3)),
        draw.random.choice([prefix(draw), ()]),
        *(draw.whole(0, 9), draw.number(0, 1)),
    )
    for name in public(type(made)):
        draw.get(f"Request.{name}", made)
    return made


def pool_of(draw: Draw) -> Any:
    return draw.do(
        "InstancePool",
        *(profile(draw), draw.whole(1, 3), draw.flag()),
        *(draw.one_of("recompute", "swap", "swap_all"), draw.whole(1, 4)),
    )


def use_pool(draw: Draw) -> None:
    pool = pool_of(draw)
    now = 0.0

    def time() -> Any:
        nonlocal now
        if draw.hostile():
            return draw.number(0, 1)
        now += draw.random.choice([0, 0, 0.01, 0.2])
        return now

    def advance() -> None:
        for completion in draw.do("InstancePool.advance", pool, time()):
            for name in public(type(completion)):
                draw.get(f"Completion.{name}", completion)

    def step() -> None:
        nonlocal now
        now = max(now, min(draw.do("InstancePool.next_event_sim_s", pool), 1e12))
        draw.do("InstancePool.advance", pool, now)

    def status() -> None:
        found = draw.do("InstancePool.status", pool, draw.whole(0, 2))
        for name in public(type(found)):
            draw.get(f"InstanceStatus.{name}", found)

    sound = draw.do("Profile", w_ms=1.0, kv_capacity_tokens=4096)
    actions = [
        lambda: draw.do("InstancePool.submit", pool, draw.whole(0, 20), request(draw), time()),
        lambda: draw.do("InstancePool.abort", pool, draw.whole(0, 20), time(), draw.flag()),
        lambda: draw.do("InstancePool.discard", pool, draw.whole(0, 20), time()),
        lambda: draw.do("InstancePool.reprioritize", pool, priorities(draw), time()),
        advance,
        step,
        status,
        lambda: draw.do("InstancePool.cached_tokens", pool, draw.whole(0, 2), prefix(draw)),
        lambda: draw.do("InstancePool.outstanding", pool),
        lambda: draw.do("InstancePool.busy_sim_s", pool, draw.whole(0, 2)),
        lambda: draw.do("InstancePool.preemptions", pool),
        lambda: draw.do("InstancePool.progress", pool, draw.whole(0, 2)),
        lambda: draw.do(
            "InstancePool.iteration_sim_s",
            *(profile(draw), draw.whole(0, 9), draw.whole(0, 99), draw.whole(0, 99)),
        ),
        lambda: draw.do("InstancePool.check_fits", sound, request(draw)),
        lambda: draw.do("InstancePool.check_fits", profile(draw), request(draw)),
        lambda: draw.do("InstancePool.isolated_sim_s", sound, request(draw)),
        lambda: draw.do("InstancePool.isolated_sim_s", profile(draw), request(draw)),
    ]
    draw.attempt([*[actions[0]] * 6, *[advance, step] * 3, *actions], 40)


def use_simulate(draw: Draw) -> None:
    n = draw.random.randint(0, 20)
    arrivals = np.sort(draw.numpy.uniform(0, 2, n).round(1))
    options = {
        "priority": lambda: draw.values(np.int64, n, 0, 3),
        "prefix_id": lambda: draw.values(np.int64, n, -1, 3),
        "prefix_tokens": lambda: draw.values(np.int32, n, 0, 9),
        "instances": lambda: draw.whole(1, 3),
        "prefix_reuse": draw.flag,
        "concurrency": lambda: draw.whole(0, 4),
        "preemption": lambda: draw.one_of("recompute", "swap", "swap_all"),
        "decision_iterations": lambda: draw.whole(1, 4),
        "schedule": lambda: draw.one_of("mixed", "prefill_first"),
        "chunked_prefill": draw.flag,
        "watermark": lambda: draw.one_of(0.0, 0.01, 0.5),
        "surplus": draw.flag,
    }
    chosen = {name: make() for name, make in options.items() if draw.random.random() < 0.5}
    draw.do(
        "simulate",
        *(profile(draw), draw.damaged(arrivals), draw.values(np.int32, n, 1, 40)),
        draw.values(np.int32, n, 1, 20),
        **chosen,
    )


def _dependencies(draw: Draw, agents: int, steps: int) -> dict[str, Any]:
    counts = draw.numpy.integers(0, 3, agents * steps) * draw.random.randint(0, 1)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return {
        "value_offsets": offsets[: None if draw.random.random() < 0.7 else 0],
        "value_writers": draw.numpy.integers(0, agents, offsets[-1]).astype(np.int32),
        "value_ago": draw.numpy.integers(1, 4, offsets[-1]).astype(np.int32),
    }


def use_replay(draw: Draw) -> None:
    agents, steps = draw.random.randint(1, 4), draw.random.randint(1, 4)
    positions = np.repeat(draw.numpy.integers(0, 7, (1, agents, 2)), steps, 0).astype(np.float32)
    if draw.random.random() < 0.4:
        positions[:, :, 1] = 0
    counts = draw.numpy.integers(0, 4, agents * steps)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(np.arange(agents * steps), counts)
    n = len(rows)
    parents: list[int] = []
    parent_offsets = [0]
    for call, row in enumerate(rows):
        first = offsets[row - row % agents]  # of this step
        parents += [p for p in range(first, call) if draw.random.random() < 0.3]
        if draw.hostile():
            parents.append(draw.random.randrange(n))
        parent_offsets.append(len(parents))
    columns = {
        "positions": positions,
        "call_offsets": offsets,
        "call_step": (rows // agents).astype(np.int32),
        "call_agent": (rows % agents).astype(np.int32),
        "parent_offsets": np.array(parent_offsets),
        "parents": np.array(parents, np.int64),
        "prompt_tokens": draw.numpy.integers(1, 30, n).astype(np.int32),
        "output_tokens": draw.numpy.integers(1, 9, n).astype(np.int32),
        "prefix_id": draw.numpy.integers(-1, 3, n),
        "prefix_tokens": draw.numpy.integers(0, 2, n).astype(np.int32),
        **_dependencies(draw, agents, steps),
    }
    given = {name: draw.damaged(column) for name, column in columns.items()}
    hostility, draw.hostility = draw.hostility, min(draw.hostility, 0.05)
    controller = controller_of(draw, positions[0].astype(float), steps)
    pool = pool_of(draw)
    draw.hostility = hostility
    if draw.hostile():
        draw.attempt([lambda: draw.do("InstancePool.submit", pool, 0, request(draw), 0.0)], 1)
    options = {"max_outstanding": draw.whole(0, 3)}
    if draw.random.random() < 0.5:
        radii = {"perception_radius": draw.number(0, 4), "max_velocity": draw.number(0, 2)}
        chosen = {"cluster_radius": draw.number(0, 3), "risk_max": draw.number(0, 1)}
        chosen |= {"calls_half": draw.number(0, 3)}
        optimism = draw.do("Optimism", metric=metric(draw), **radii, **chosen)
        options = {"max_outstanding": draw.whole(0, 0), "optimism": draw.one_of(optimism)}
    replay = draw.do(
        "Replay",
        **given,
        controller=draw.one_of(controller),
        instances=draw.one_of(pool),
        step_priority=draw.flag(),
        **options,
    )

    def spoil() -> None:
        """Change a column that was passed to the replay."""
        if draw.hostile():
            column = draw.random.choice(list(given.values()))
            if isinstance(column, np.ndarray) and column.size and column.flags.writeable:
                column.flat[0] = draw.random.choice([-1, 2**31 - 1])

    draw.attempt(
        [
            *[lambda: draw.do("Replay.run", replay, draw.whole(1, 6))] * 4,
            spoil,
            lambda: draw.do("Controller.start", controller) if draw.hostile() else None,
            lambda: (
                draw.do("InstancePool.submit", pool, draw.whole(0, n), request(draw), 9.0)
                if draw.hostile()
                else None
            ),
            *[
                lambda name=name: draw.get(f"Replay.{name}", replay)
                for name in (
                    "committed_agent_steps",
                    "makespan_sim_s",
                    "controller_wall_s",
                    "sent_calls",
                )
            ],
            *[
                lambda name=name: draw.do(f"Replay.{name}", replay)
                for name in (
                    "sent_sim_s",
                    "first_token_sim_s",
                    "preempted_sim_s",
                    "completed_sim_s",
                    "instance",
                    "blocked_by",
                    "cluster",
                    "wasted",
                )
            ],
            lambda: draw.do("Replay.dispatched_sim_s", replay),
            lambda: draw.do("Replay.committed_sim_s", replay),
        ],
        20,
    )


def use_text(draw: Draw) -> None:
    text = draw.one_of("", "two words ", "\u00e9\u2003\ud800", "x" * 99)
    draw.do("approximate_tokens", text)
    draw.do("piece_hashes", text, draw.whole(1, 20), draw.whole(0, 9))


def use_memory(draw: Draw) -> None:
    draw.do("use_huge_pages")


def use_snapshot(draw: Draw) -> None:
    value = [draw.whole(0, 3), {"a": draw.junk()}, (draw.number(0, 1),), Thing(draw.junk())]
    snapshot = draw.do("Snapshot", value)
    draw.get("Snapshot.is_complete", snapshot)
    draw.attempt(
        [
            lambda: draw.do("Snapshot.matches", snapshot, draw.one_of(value, value[:3], value[0])),
            lambda: draw.do("have_same_items", draw.one_of(value, []), draw.one_of(value, [])),
            lambda: draw.do("is_immutable", draw.one_of(value, *value)),
            lambda: setattr(value[3], "what", draw.junk()),
        ],
        6,
    )


def use_anything(draw: Draw) -> None:
    """Any public name with any arguments; objects created without a constructor."""
    name = draw.random.choice(public_names(draw.core))
    target: Any = draw.core
    for part in name.split("."):
        target = getattr(target, part)
    owner = getattr(draw.core, name.split(".")[0])
    if name == "bench_controller":
        return
    draw.hostility = 1
    actions = [
        lambda: target(*(draw.junk() for _ in range(draw.random.randint(0, 6)))),
        lambda: owner.__new__(owner),
        lambda: copy.copy(draw.do("plane_metric", "chebyshev")),
        lambda: pickle.dumps(draw.do("plane_metric", "chebyshev")),
        lambda: type("Heir", (owner,), {"__init__": lambda self: None})(),
        lambda: setattr(draw.do("plane_metric", "chebyshev"), "within", 3),
    ]
    try:
        draw.random.choice(actions)()
    except (ValueError, TypeError, AttributeError) as error:
        raise RefusedError from error
    except (RefusedError, FindingError):
        raise
    except Exception as error:
        raise FindingError(f"{name}: {error!r}") from error


def public(owner: Any) -> list[str]:
    return [name for name in dir(owner) if not name.startswith("_")]


def public_names(core: Any) -> list[str]:
    """Functions, classes and their members, such as "simulate" and "InstancePool.submit"."""
    names = []
    for name in public(core):
        value = getattr(core, name)
        if inspect.isclass(value):
            names += [f"{name}.{member}" for member in public(value)]
            if value.__name__ in CONSTRUCTED:
                names.append(name)
        else:
            names.append(name)
    return names


CASES = (
    use_metric,
    use_controller,
    use_left_places,
    use_bench,
    use_pool,
    use_simulate,
    use_replay,
    use_text,
    use_memory,
    use_snapshot,
    use_anything,
)
