"""DroidSpeak: a fine-tuned model starts from the cache of its foundation model, by a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf
from pathlib import Path

from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest, Reuse
from metropolis.reuse.fixed import pays, preference
from metropolis.reuse.plan import (
    QUALITY_ROUNDING,
    Plan,
    PlanError,
    PlanPoint,
    load_plans,
    transitions,
)
from metropolis.types import MetropolisError


class DroidSpeak(CacheReuse):
    """Reuses by plans, of which each pair of models has at most one.

    A request takes the fastest point of its pair's plan that loses at most `loss` of quality. With
    `ttft_s` above 0 it takes the point of the best quality whose prefill is expected to take at
    most so long, which may be no reuse, and the fastest if there is none (NSDI'26: the
    configuration is chosen for each request under a target of latency). Raises MetropolisError when
    an option is out of range, and PlanError when the plans contradict each other.
    """

    def __init__(self, plans: Sequence[Plan], loss: float = 0.02, ttft_s: float = 0.0) -> None:
        if not 0 <= loss <= 1:
            raise MetropolisError(f"loss is {loss}; it should be from 0 to 1")
        if not 0 <= ttft_s < inf:
            raise MetropolisError(f"ttft_s is {ttft_s}; it should be at least 0, and not inf")
        self._ttft_s = ttft_s
        self._layers: dict[tuple[str, str], int] = {}
        self._points: dict[tuple[str, str], list[PlanPoint]] = {}
        """(sender, receiver) -> the points that lose at most `loss`, the fastest first."""
        for plan in plans:
            pair = plan.sender, plan.receiver
            if pair in self._points:
                raise PlanError(f"two plans are for {pair[0]!r} and {pair[1]!r}; give one")
            self._layers[pair] = plan.layers
            self._points[pair] = plan.within(loss)
        if both := self.receivers() & {sender for sender, _ in self._points}:
            raise PlanError(
                f"{min(both)!r} is the receiver of one plan and the sender of another; name plans "
                "in which no receiver is a sender: none gives the loss of two reuses in a row"
            )

    def choose(self, placed: PlacedRequest, caches: Sequence[CachedPrefix]) -> Reuse | None:
        """See CacheReuse."""
        own = placed.own_tokens(caches)
        found = [each for each in self._each(placed, caches, own) if pays(placed, each, own)]
        return min(found, key=lambda each: preference(placed, each, own), default=None)

    def input_layers(self, model: str) -> frozenset[int]:
        """See CacheReuse."""
        return frozenset().union(
            *(
                transitions(point.recompute)
                for (sender, _), points in self._points.items()
                for point in points
                if sender == model
            )
        )

    def receivers(self) -> frozenset[str]:
        """See CacheReuse."""
        return frozenset(receiver for _, receiver in self._points)

    def check_models(self, shapes: Mapping[str, CacheShape]) -> None:
        """See CacheReuse."""
        if not any({*pair} <= shapes.keys() for pair in self._layers):
            raise PlanError(f"no plan is for two of the models {', '.join(shapes)}")
        for (sender, receiver), layers in self._layers.items():
            for model in (sender, receiver):
                if model in shapes and shapes[model].layers != layers:
                    raise PlanError(
                        f"the plan for {sender!r} and {receiver!r} is for models of {layers} "
                        f"layers; {model!r} has {shapes[model].layers}"
                    )
            if {sender, receiver} <= shapes.keys() and shapes[sender] != shapes[receiver]:
                raise PlanError(
                    f"{receiver!r} cannot start from the cache of {sender!r}, as their plan says: "
                    "keys, values or inputs of layers differ in size"
                )

    def _each(
        self, placed: PlacedRequest, caches: Sequence[CachedPrefix], own_tokens: int
    ) -> Iterator[Reuse]:
        """What each cache offers, with the point that its pair's plan recommends."""
        for cache in caches:
            tokens = min(cache.tokens, placed.request.prompt_tokens - 1)
            points = [
                point
                for point in self._points.get((cache.model, placed.request.model or ""), ())
                if transitions(point.recompute) <= cache.input_layers
            ]
            if points and tokens > own_tokens:
                share_reused = (tokens - own_tokens) / placed.request.prompt_tokens
                share_left = 1 - own_tokens / placed.request.prompt_tokens
                point = self._recommended(points, placed.prefill_s, share_reused, share_left)
                if point:
                    yield Reuse(cache, tokens, point.recompute, point.prefill_share)

    def _recommended(
        self,
        points: Sequence[PlanPoint],
        prefill_s: float | None,
        share_reused: float,
        share_left: float,
    ) -> PlanPoint | None:
        """One of the points, the fastest first; None: a prefill of all layers is fast enough.

        `share_left` of the prompt is not in the own cache, `share_reused` of it in the other one.
        """
        if not self._ttft_s or prefill_s is None:
            return points[0]
        if prefill_s * share_left <= self._ttft_s:
            return None
        for point in reversed(points):
            if prefill_s * (share_left - share_reused * (1 - point.prefill_share)) <= self._ttft_s:
                return point
        return points[0]


def from_files(plans: str = "", loss: float = 0.02, ttft_s: float = 0.0) -> DroidSpeak:
    """Reuse by the plan file, or the folder of plan files, at `plans`.

    Raises PlanError when a plan cannot be used or has no point within the loss, and as DroidSpeak.
    """
    if not plans:
        raise MetropolisError("name a plan file or a folder of plans: plans=PATH")
    loaded = load_plans(Path(plans).expanduser())
    reuse = DroidSpeak(loaded, loss, ttft_s)
    for plan in loaded:
        if not plan.within(loss):
            least = plan.receiver_quality - max(point.quality for point in plan.points)
            enough = ceil((least - QUALITY_ROUNDING) * 1000) / 1000
            raise PlanError(
                f"no point of the plan for {plan.sender!r} and {plan.receiver!r} loses at most "
                f"{loss:g} of quality; the best loses {least:.3g}: give loss={enough:g} or more"
            )
    return reuse
