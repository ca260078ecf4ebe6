"""What placed requests start from, of the caches that simulated instances hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from metropolis._core import InstancePool, Request
from metropolis.policy.base import QueuedRequest
from metropolis.reuse.base import CachedPrefix, CacheReuse, CacheShape, PlacedRequest, Reuse
from metropolis.reuse.faults import (
    check_models,
    chosen_by,
    input_layers_of,
    own_prefix_of,
    receivers_of,
)
from metropolis.reuse.plan import transitions
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.instance import Start
from metropolis.sim.link import Links, start_delay
from metropolis.types import MetropolisError


@dataclass(slots=True)
class ReuseCounts:
    """The caches that the prefills of all placed requests started from, so far."""

    prompt_tokens: int = 0
    """Tokens of the prompts."""
    own_tokens: int = 0
    """Tokens of the prompts that were in the instance's own cache of the request's model."""
    reused_tokens: int = 0
    """Tokens after those that were taken from other caches."""
    moved_bytes: int = 0
    """Bytes copied between instances."""
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(model of the other cache, model of the request) -> number of requests that started from
    another cache."""

    @property
    def other_model_hits(self) -> int:
        """Requests that started from another model's cache."""
        return sum(count for (sender, receiver), count in self.hits.items() if sender != receiver)

    def as_row(self) -> dict[str, int]:
        """The counts, for tables and JSON."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "own_tokens": self.own_tokens,
            "reused_tokens": self.reused_tokens,
            "moved_bytes": self.moved_bytes,
            "other_model_hits": self.other_model_hits,
        }


class CacheChoice:
    """Asks `reuse` about the requests placed on a fleet, of which each instance hosts one model.

    Instances without a name host the same model, "". `overlapped`: a prefill runs while the rest of
    its transfer arrives. Raises PluginError, and MetropolisError when only some instances have a
    name, or a profile lacks the sizes of what a model keeps.
    """

    def __init__(
        self, reuse: CacheReuse, fleet: SimulatedFleet, *, overlapped: bool = True
    ) -> None:
        self._reuse, self._overlapped = reuse, overlapped
        self._receivers = receivers_of(reuse)
        self._models = _hosted(fleet)
        self._shapes = [entry.shape for entry in fleet.instances]
        shapes = dict(zip(self._models, self._shapes, strict=True))
        for model, shape in zip(self._models, self._shapes, strict=True):
            if shape != shapes[model]:
                raise MetropolisError(
                    f"two instances that host {model!r} keep different caches: {_sizes(shape)} "
                    f"against {_sizes(shapes[model])}"
                )
        check_models(reuse, shapes)
        self._layers = {
            model: input_layers_of(reuse, model, shape.layers) for model, shape in shapes.items()
        }
        entries = zip(fleet.instances, self._models, strict=True)
        self.fleet = replace(
            fleet,
            instances=tuple(
                entry.keeping_inputs(len(self._layers[model])) for entry, model in entries
            ),
        )
        """The fleet with the KV capacity that the kept inputs (E) leave."""
        self.own_prefix = own_prefix_of(reuse)
        """Whether an instance reuses its own KV."""
        self.counts = ReuseCounts()
        self._links = Links([entry.link_gb_per_s * 1e9 for entry in fleet.instances])

    def start(
        self, request: QueuedRequest, index: int, held_tokens: Sequence[int], now_sim_s: float
    ) -> Start:
        """What `request` on instance `index` starts from; its transfer begins.

        `held_tokens`: leading tokens of its prompt in each instance's prefix cache. Raises
        PluginError, and MetropolisError if the chosen cache is of a model of another shape.
        """
        model = self._models[index]
        self.counts.prompt_tokens += request.prompt_tokens
        caches = [
            CachedPrefix(
                each, tokens, number, self._layers[each], self._links.bytes_per_s(number, index)
            )
            for number, (each, tokens) in enumerate(zip(self._models, held_tokens, strict=True))
            if tokens and (number == index or each not in self._receivers)
        ]
        if not caches:
            return Start()
        placed = PlacedRequest(
            replace(request, model=model),
            index,
            self._prefill_s(index, Request(request.prompt_tokens, 1)),
            self._shapes[index],
        )
        own = placed.own_tokens(caches)
        self.counts.own_tokens += min(own, request.prompt_tokens - 1)
        chosen = chosen_by(self._reuse, placed, caches)
        if chosen is None or chosen.tokens <= own:
            return Start()
        self._check_shape(chosen, index)
        self.counts.hits[chosen.cache.model, model] += 1
        self.counts.reused_tokens += chosen.tokens - own
        ready_sim_s = self._transferred(chosen, placed, own, now_sim_s)
        return Start(chosen.tokens, chosen.prefill_share, ready_sim_s)

    def _transferred(
        self, chosen: Reuse, placed: PlacedRequest, own_tokens: int, now_sim_s: float
    ) -> float:
        """When enough has arrived for the prefill: E, or else the KV of one layer, goes first."""
        source, index, shape = chosen.cache.instance, placed.instance, self._shapes[placed.instance]
        moved_bytes = chosen.moved_bytes(placed, own_tokens)
        if not moved_bytes:
            return now_sim_s
        self.counts.moved_bytes += moved_bytes
        begun_sim_s, arrived_sim_s = self._links.begin(source, index, moved_bytes, now_sim_s)
        inputs = len(transitions(chosen.recompute)) * shape.input_bytes_per_token
        first_bytes = inputs or shape.kv_bytes_per_token // shape.layers
        tokens = chosen.tokens - own_tokens
        # Without the attention to the own tokens: at most what the prefill will take.
        left = Request(
            placed.request.prompt_tokens - own_tokens, 1, 0, (), tokens, chosen.prefill_share
        )
        return begun_sim_s + start_delay(
            arrived_sim_s - begun_sim_s,
            self._prefill_s(index, left),
            self._overlapped,
            first_bytes * tokens / self._links.bytes_per_s(source, index),
        )

    def _prefill_s(self, index: int, request: Request) -> float:
        profile, chunked = self.fleet.instances[index].profile, self.fleet.rules.chunked_prefill
        return InstancePool.isolated_sim_s(profile, request, chunked)

    def _check_shape(self, chosen: Reuse, index: int) -> None:
        cache = chosen.cache
        shapes = self._shapes[cache.instance], self._shapes[index]
        if shapes[0] != shapes[1]:
            raise MetropolisError(
                f"model {self._models[index]!r} cannot start from the cache of {cache.model!r}: "
                f"{_sizes(shapes[1])} against {_sizes(shapes[0])}"
            )


def _sizes(shape: CacheShape) -> str:
    return f"{shape.layers} layers and {shape.kv_bytes_per_token:,} bytes of KV per token"


def _hosted(fleet: SimulatedFleet) -> list[str]:
    """The one model of each instance."""
    models = [entry.model or "" for entry in fleet.instances]
    if "" in models and any(models):
        name = fleet.instances[models.index("")].name
        raise MetropolisError(
            f"the instance {name} does not say which model it hosts, and others do; with --reuse "
            f"write NAME={name}"
        )
    return models
