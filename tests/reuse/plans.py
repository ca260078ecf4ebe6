"""Random plans and requests."""

from __future__ import annotations

from hypothesis import strategies as st

from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CachedPrefix, CacheShape, PlacedRequest
from metropolis.reuse.plan import Band, Plan, PlanPoint, pareto_front

LAYERS = 12
SHARES = st.floats(0, 1)


@st.composite
def bands(draw: st.DrawFn) -> tuple[Band, ...]:
    """Bands of some layers: the maximal contiguous parts of a random set."""
    chosen = draw(st.sets(st.integers(0, LAYERS - 1)))
    starts = sorted(layer for layer in chosen if layer - 1 not in chosen)
    ends = sorted(layer for layer in chosen if layer + 1 not in chosen)
    return tuple(map(Band, starts, ends))


points = st.builds(PlanPoint, bands(), SHARES, SHARES)


@st.composite
def plans(draw: st.DrawFn, sender: str = "base", receiver: str = "chat") -> Plan:
    """A consistent plan."""
    return Plan(
        sender=sender,
        receiver=receiver,
        layers=LAYERS,
        metric="exact match",
        data="random",
        prompt_tokens=draw(st.integers(1, 10_000)),
        sender_quality=draw(st.none() | SHARES),
        receiver_quality=draw(SHARES),
        points=pareto_front(draw(st.lists(points, min_size=1, max_size=6))),
        source="random",
    )


def request_for(model: str | None, prompt_tokens: int) -> QueuedRequest:
    """A request with nothing special."""
    return QueuedRequest(0, "program", "function", prompt_tokens, 0.0, 0.0, model=model)


@st.composite
def placed_requests(draw: st.DrawFn) -> PlacedRequest:
    """A request on one of three instances."""
    unknown = st.none()
    return PlacedRequest(
        request_for(draw(st.sampled_from(["base", "chat", None])), draw(st.integers(1, 3000))),
        draw(st.integers(0, 2)),
        draw(unknown | st.floats(1e-3, 10)),
        draw(unknown | st.just(CacheShape(LAYERS, 12_000, 700))),
    )


caches = st.lists(
    st.builds(
        CachedPrefix,
        st.sampled_from(["base", "chat"]),
        st.integers(0, 4000),
        st.integers(0, 2),
        st.frozensets(st.integers(0, LAYERS - 1)) | st.just(frozenset(range(LAYERS))),
        st.sampled_from([None, 1e5, 1e7, 1e12]),
    ),
    max_size=5,
)
