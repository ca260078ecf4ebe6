"""Fleets of simulated instances, and the load that keeps one busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from metropolis._core import InstancePool, Profile
from metropolis.dispatch.base import Fleet, InstanceSpec
from metropolis.names import count_in, did_you_mean
from metropolis.sim.engine_rules import VLLM, EngineRules
from metropolis.sim.options import PoolOptions
from metropolis.sim.profiles import ProfileEntry, load_entry
from metropolis.trace.programs import Program
from metropolis.types import MetropolisError
from metropolis.world.checks import whole_number

INSTANCES_MAX = 65_536
SEQUENCE_TOKENS = 800
"""Assumed KV tokens of a running sequence, where no sequences are known."""


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """The specifications of simulated instances; their text is like `3 x A + 1 x B`."""

    instances: tuple[ProfileEntry, ...]
    """Profile, tensor parallelism and model of each."""
    rules: EngineRules = VLLM
    """Scheduling rules of all instances; their profiles comply with them (see `under`)."""

    @classmethod
    def uniform(cls, profile: str, count: int = 1) -> SimulatedFleet:
        """`count` instances of the profile of that name (see `load_entry`).

        Raises MetropolisError unless there is such a profile, and `count` is 1 to INSTANCES_MAX.
        """
        return cls((load_entry(profile),) * whole_number("count", count, 1, INSTANCES_MAX))

    @classmethod
    def parse(cls, specs: Sequence[str]) -> SimulatedFleet:
        """The fleet of a list of `[NAME=]PROFILE[:COUNT]`; NAME is the model that they host.

        Raises MetropolisError on an unknown profile, an empty name and a wrong count.
        """
        instances: list[ProfileEntry] = []
        for spec in specs:
            model, mark, given = spec.rpartition("=")
            profile, colon, count = given.rpartition(":")
            if not colon:
                profile, count = given, "1"
            wanted = count_in(count, INSTANCES_MAX - len(instances))
            if wanted is None or (mark and not model.strip()):
                raise MetropolisError(
                    f"{spec!r} is not an instance: write PROFILE, PROFILE:COUNT or "
                    "NAME=PROFILE:COUNT with the model's name, like llama-3-8b/l4:2; a fleet has "
                    f"at most {INSTANCES_MAX:,} instances"
                )
            entry = load_entry(profile)
            if mark:
                entry = replace(entry, name=f"{model}={profile}", model=model)
            instances += [entry] * wanted
        return cls(tuple(instances))

    def __len__(self) -> int:
        return len(self.instances)

    def __str__(self) -> str:
        counts = Counter(each.name for each in self.instances)
        gpus = sum(each.tensor_parallel for each in self.instances)
        text = " + ".join(f"{count} x {name}" for name, count in counts.items())
        if gpus != len(self):
            text += f" ({gpus} GPUs)"
        return text if self.rules == VLLM else f"{text}, rules of {self.rules.name}"

    def under(self, rules: EngineRules) -> SimulatedFleet:
        """The fleet with other scheduling rules."""
        kinds = {
            each.name: replace(each, profile=rules.profile(each.profile)) for each in self.kinds
        }
        return SimulatedFleet(tuple(kinds[each.name] for each in self.instances), rules)

    def pool_options(self, prefix_reuse: bool = False) -> PoolOptions:
        """The options of the instances' pools."""
        return replace(self.rules.options(), prefix_reuse=prefix_reuse)

    @property
    def profile_names(self) -> str:
        """The names of the profiles, separated by commas."""
        return ",".join(each.name for each in self.kinds)

    @property
    def hosted(self) -> frozenset[str] | None:
        """The models that the instances host; None: one of them serves every model."""
        models = frozenset(each.model for each in self.instances if each.model is not None)
        return None if any(each.model is None for each in self.instances) else models

    def check_hosts(self, models: Iterable[str]) -> None:
        """Raise MetropolisError if no instance hosts one of `models`; "": a call without one."""
        if (hosted := self.hosted) is None:
            return
        for model in sorted(set(models)):
            if not model:
                raise MetropolisError(
                    f"calls have no model, and the instances host {', '.join(sorted(hosted))}; "
                    "name the model of calls with --model NAME"
                )
            if model not in hosted:
                raise MetropolisError(
                    f"no instance hosts the model {model!r}{did_you_mean(model, hosted)}; they "
                    f"host {', '.join(sorted(hosted))}. Add --instance {model}=PROFILE, or name "
                    "another model with --model"
                )

    @property
    def kinds(self) -> list[ProfileEntry]:
        """The different specifications of the instances, each once."""
        return [*{each.name: each for each in self.instances}.values()]

    @property
    def profiles(self) -> list[Profile]:
        """The profile of each instance."""
        return [each.profile for each in self.instances]

    def of_size(self, count: int) -> SimulatedFleet:
        """The first `count` instances; a shorter list is repeated."""
        return replace(self, instances=tuple(islice(cycle(self.instances), count)))

    def dispatcher_view(self) -> Fleet:
        """The fleet as a dispatcher sees it."""
        specs = {each.name: _spec(each) for each in self.kinds}
        return Fleet(tuple(specs[each.name] for each in self.instances))


def _spec(entry: ProfileEntry) -> InstanceSpec:
    """The specification for dispatchers: the decode speed is that of a usual busy batch.

    That is half of the most sequences, or as many of SEQUENCE_TOKENS as fill the memory.
    """
    profile, tokens = entry.profile, entry.profile.kv_capacity_tokens
    sequences = max(1, min(profile.max_sequences // 2, tokens // SEQUENCE_TOKENS))
    iteration_s = InstancePool.iteration_sim_s(profile, sequences, tokens)
    return InstanceSpec(tokens, 1 / iteration_s, () if entry.model is None else (entry.model,))


def busy_rate_per_s(sample: Sequence[Program], fleet: SimulatedFleet) -> float:
    """Programs per second that fill a fleet, estimated from a sample.

    They keep all KV memory or all sequences of every instance in use, whichever is full first.
    During decoding a request holds its prompt and, on average, half of its answer. Prefills, whole
    as no cache is assumed, make the iterations longer in which they take place.
    """
    calls = [call for program in sample for call in program.calls]
    decoded = sum(call.output_tokens for call in calls)
    held = sum((call.prompt_tokens + call.output_tokens / 2) * call.output_tokens for call in calls)

    def full_per_s(entry: ProfileEntry) -> float:
        profile, tokens = entry.profile, entry.profile.kv_capacity_tokens
        sequences = min(profile.max_sequences, max(1, int(tokens * decoded / held)))
        decode_s = InstancePool.iteration_sim_s(profile, sequences, tokens)
        prefills_s = sum(
            InstancePool.iteration_sim_s(profile, sequences, tokens, call.prompt_tokens) - decode_s
            for call in calls
        )
        return len(sample) / (decode_s * decoded / sequences + prefills_s)

    return sum(map(full_per_s, fleet.instances))
