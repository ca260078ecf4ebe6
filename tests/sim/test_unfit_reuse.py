"""Models, links and plug-ins that do not fit are found before the first request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import PrefixReuse
from metropolis.sim.cache_choice import CacheChoice
from metropolis.sim.fleet import SimulatedFleet
from metropolis.sim.profiles import load_entry
from metropolis.types import MetropolisError
from tests.sim.test_cache_choice import PLAN, Everything, fleet, serve


def test_models_of_unlike_shape_are_one_sentence() -> None:
    large = replace(load_entry("llama-3-70b/a100-tp4"), name="chat", model="chat")
    unlike = SimulatedFleet((*fleet("base").instances, large))
    with pytest.raises(MetropolisError, match="is for models of 32 layers; 'chat' has 80"):
        CacheChoice(DroidSpeak([PLAN]), unlike)
    reuse = Everything(0)
    sentence = "'chat' cannot start from the cache of 'base': 80 layers and 327,680 bytes of KV"
    with pytest.raises(MetropolisError, match=sentence):
        serve(CacheChoice(reuse, unlike), ("base", 0.0), ("chat", 100.0))
    twice = SimulatedFleet((*fleet("chat").instances, large))
    with pytest.raises(MetropolisError, match="two instances that host 'chat' keep different"):
        CacheChoice(reuse, twice)
    with pytest.raises(MetropolisError, match="no plan is for two of the models base, plan"):
        CacheChoice(DroidSpeak([PLAN]), fleet("base", "plan"))


def test_a_copy_is_judged_by_the_slower_link() -> None:
    """The sender's link is slow: copying would take longer than computing."""
    slow, fast = fleet("base", link_gb_per_s=0.1), fleet("chat")
    both = SimulatedFleet((*slow.instances, *fast.instances))
    choice = CacheChoice(DroidSpeak([PLAN]), both)
    serve(choice, ("base", 0.0), ("chat", 9.0))
    assert choice.counts.reused_tokens == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"own_prefix": "no"}, "has the own_prefix 'no'"),
        ({"input_layers": lambda self, model: frozenset({99})}, "layers from 0 to below 32"),
        ({"check_models": lambda self, shapes: 1 / 0}, "failed in check_models: .*division"),
    ],
    ids=["own_prefix", "input_layers", "check_models"],
)
def test_faulty_reuse_is_named_at_the_start(fields: dict[str, Any], said: str) -> None:
    faulty = type("Faulty", (Everything,), fields)
    with pytest.raises(MetropolisError, match=f"the reuse Faulty .*{said}"):
        CacheChoice(faulty(0), fleet("base", "chat"))


def test_a_profile_without_sizes_is_one_sentence() -> None:
    unknown = SimulatedFleet(tuple(replace(e, layers=None) for e in fleet("base").instances))
    with pytest.raises(MetropolisError, match="the profile 'base' cannot reuse other caches: it l"):
        CacheChoice(PrefixReuse(), unknown)
