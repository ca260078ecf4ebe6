"""The model that answers each call: by agent, by function, or one for all calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from metropolis.names import did_you_mean, shortened
from metropolis.trace.schema import Trace
from metropolis.types import MetropolisError

FORMS = "NAME, FUNCTION=NAME[,FUNCTION=NAME] or @AGENT=NAME"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model of each call: the agent's, else the function's, else the default."""

    default: str | None = None
    """The model of all other calls; None: the backend's own."""
    by_function: Mapping[str, str] = field(default_factory=dict)
    """Name of a function -> the model of its calls, but for those of agents in `by_agent`."""
    by_agent: Mapping[str, str] = field(default_factory=dict)
    """Name of an agent -> the model of its calls."""

    @classmethod
    def parse(cls, specs: Sequence[str]) -> ModelChoice:
        """Read texts that each have one of the `FORMS`.

        Raises MetropolisError on another form, and if two entries contradict each other.
        """
        found: dict[str, str] = {}
        for spec in specs:
            for whose, model in _entries(spec):
                if found.setdefault(whose, model) != model:
                    what = f"{whose!r} has" if whose else "all other calls have"
                    raise MetropolisError(
                        f"{what} two models, {found[whose]!r} and {model!r}; name one"
                    )
        agents = {whose[1:]: model for whose, model in found.items() if whose.startswith("@")}
        functions = {w: model for w, model in found.items() if w and not w.startswith("@")}
        return cls(found.get(""), functions, agents)

    @property
    def own(self) -> Mapping[str, str]:
        """Function or @agent -> its model, without the default."""
        agents = {f"@{name}": model for name, model in self.by_agent.items()}
        return {**self.by_function, **agents}

    @property
    def named(self) -> frozenset[str]:
        """All models that calls may ask for, without the default."""
        return frozenset(self.own.values())

    def of(self, agent: str, function: str) -> str | None:
        """The model of a call of `agent`, a name; None: the backend's own."""
        return self.by_agent.get(agent) or self.by_function.get(function) or self.default

    def check_agents(self, names: Collection[str]) -> None:
        """Raise MetropolisError if one of the agents is not among `names`."""
        _check("agent", self.by_agent, names)

    def check_functions(self, names: Collection[str]) -> None:
        """Raise MetropolisError if one of the functions is not among `names`."""
        _check("function", self.by_function, names)

    def applied_to(self, trace: Trace) -> Trace:
        """Return the trace with these models; a call for which there is none keeps its model.

        Raises MetropolisError if the trace lacks one of the agents or functions.
        """
        self.check_agents(trace.meta.agents)
        self.check_functions(trace.calls.functions)
        calls = trace.calls
        models = [*dict.fromkeys((*calls.models, *self.named, self.default or ""))]
        number = {model: index for index, model in enumerate(models)}
        kept = calls.model.copy()
        if self.default is not None:
            kept[:] = number[self.default]
        for names, of, chosen in (
            (calls.functions, calls.function, self.by_function),
            (trace.meta.agents, calls.agent, self.by_agent),
        ):
            own = np.array([number[chosen[name]] if name in chosen else -1 for name in names])
            if len(own):
                kept = np.where(own[of] >= 0, own[of], kept).astype(np.int32)
        used, model = np.unique(kept, return_inverse=True)
        return replace(
            trace,
            calls=replace(
                calls,
                models=tuple(models[index] for index in used.tolist()),
                model=model.astype(np.int32),
            ),
        )


def _entries(spec: str) -> list[tuple[str, str]]:
    """(function, @agent or "", model) of each entry of one text; "" stands for the default."""
    if "=" not in spec:
        entries = [("", "", spec)]
    else:
        entries = [entry.partition("=") for entry in spec.split(",")]
    for whose, mark, model in entries:
        if not model.strip() or (mark and whose in ("", "@")):
            raise MetropolisError(f"{spec!r} does not name models in this form: {FORMS}")
    return [(whose.strip(), model.strip()) for whose, _, model in entries]


def _check(kind: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise MetropolisError(
                f"a model is named for the {kind} {name!r}, which does not exist"
                f"{did_you_mean(name, known)}; there are {shortened(sorted(known), 12)}"
            )
