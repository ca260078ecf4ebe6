"""The fuzzer's case for `metropolis._core.Speculation`."""

from __future__ import annotations

from typing import Any

from .controller_cases import controller_of, metric
from .draw import Draw

RESOLVE, PROCEED = 4, 5


def use_speculation(draw: Draw) -> None:
    agents, steps = draw.random.randint(0, 5), draw.random.randint(0, 3)
    positions = draw.numpy.integers(0, 7, (agents, 2)).astype(float)
    if draw.random.random() < 0.4:
        positions[:, 1] = 0
    hostility, draw.hostility = draw.hostility, min(draw.hostility, 0.05)
    controller = controller_of(draw, positions, steps)
    draw.hostility = hostility
    places = [tuple(place) for place in positions]
    speculation = draw.do(
        "Speculation",
        controller=draw.one_of(controller),
        metric=metric(draw),
        perception_radius=draw.number(0, 3),
        cluster_radius=draw.number(0, 3),
        target_step=draw.whole(steps, steps),
        bodies=[draw.whole(a, a) for a in range(agents)],
        entities=[sighting(draw, a, places[a]) for a in range(agents)],
        minds=[draw.whole(0, 3) for _ in range(agents)],
    )
    in_flight: dict[int, tuple[int, tuple[int, ...]]] = {}

    def obey(commands: Any) -> None:
        for kind, id, _, members, _, _, _ in commands:
            if kind in (RESOLVE, PROCEED):
                in_flight[id] = kind, members

    def reads() -> list[Any]:
        """Nothing, or an answer that is often wrong."""
        if draw.random.random() < 0.8 or not agents:
            return []
        agent = draw.random.randrange(agents)
        answer = [sighting(draw, agent, places[agent])] if draw.random.random() < 0.5 else []
        return [
            (
                draw.whole(0, 2),
                agent,
                *(draw.number(0, 7), draw.number(0, 7)),
                draw.number(0, 3),
                answer,
            )
        ]

    def end() -> None:
        id = draw.whole(0, 9)
        if in_flight and not draw.hostile():
            id = draw.random.choice(list(in_flight))
        kind, members = in_flight.get(id, (0, ())) if isinstance(id, int) else (0, ())
        if kind == PROCEED:
            draw.do("Speculation.observed", speculation, id, reads())
            draw.do("Speculation.proceeded", speculation, id)
        else:
            writes = [(draw.whole(a, a), (*places[a], draw.whole(0, 2))) for a in members]
            if draw.hostile():
                writes.append(
                    (
                        draw.whole(0, 5),
                        draw.one_of(None, (*(draw.number(0, 7), draw.number(0, 7)), 0)),
                    )
                )
            events = [sighting(draw, a, places[a]) for a in range(draw.random.randint(0, agents))]
            minds = [(draw.whole(a, a), draw.whole(0, 3)) for a in members]
            forecasts = [
                (draw.whole(a, a), [sighting(draw, a, places[a])])
                for a in members
                if draw.random.random() < 0.3
            ]
            draw.do(
                "Speculation.resolved",
                *(speculation, id, reads(), writes, events, minds, forecasts),
            )

    def speculate() -> None:
        daring = draw.do("Speculation.candidates", speculation)
        chosen = [draw.whole(agent, agent) for agent in daring if draw.random.random() < 0.7]
        obey(draw.do("Speculation.speculate", speculation, chosen))

    def settle() -> None:
        obey(draw.do("Speculation.settle", speculation))

    def start() -> None:
        obey(draw.do("Speculation.start", speculation))

    draw.attempt([start], 1 if draw.random.random() < 0.9 else 0)
    draw.attempt(
        [
            *[end] * 8,
            *[settle, speculate] * 2,
            *([start] if draw.hostile() else []),
            lambda: draw.do("Speculation.lost", speculation, draw.whole(1, 20)),
            lambda: draw.do("Speculation.failed", speculation, draw.whole(1, 20)),
            lambda: draw.get("Speculation.floor", speculation),
            lambda: draw.do("Speculation.next_step", speculation, draw.whole(0, 5)),
            lambda: draw.do("Speculation.in_use", speculation),
            lambda: draw.do("Speculation.validate", speculation),
            *([lambda: draw.do("Controller.start", controller)] if draw.hostile() else []),
        ],
        60,
    )


def use_speculation_bench(draw: Draw) -> None:
    if draw.random.random() < 0.1:
        draw.do("bench_speculation", draw.random.randint(1, 9), draw.random.randint(1, 9), 1)
        return
    sizes = [(0, 5), (-1, 5), (5, 0), (5, -(2**31)), (2**31 - 1, 2**31 - 1), (5, 2**40)]
    draw.do("bench_speculation", *draw.random.choice(sizes), draw.whole(0, 9))


def sighting(draw: Draw, entity: int, where: Any) -> Any:
    if draw.hostile():
        return draw.whole(entity, entity), *(draw.number(0, 7), draw.number(0, 7)), draw.whole(0, 2)
    return entity, *where, 0
