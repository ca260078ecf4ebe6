"""`check_world`: detects what makes a world's history depend on the order of its execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from metropolis.llm.backends.scripted import Author
from metropolis.names import cut
from metropolis.runtime.checks.findings import Checks, Finding
from metropolis.runtime.checks.other_hashes import PLAIN, records_with_other_hashes
from metropolis.types import CausalityError, MetropolisError, Step
from metropolis.world.base import Agent, World
from metropolis.world.checks import check_function, check_options, seed_of, whole_number
from metropolis.world.saving import copies_of
from metropolis.world.scenario import Scenario, make_scenario


def check_world(
    world: World | str | Path | Callable[[], Scenario],
    agents: Sequence[Agent] | int | None = None,
    *,
    author: Author | None = None,
    seeds: Iterable[int] = (0, 1),
    steps: Step = 30,
    schedules: int = 3,
    options: Mapping[str, Any] | None = None,
    world_options: Mapping[str, Any] | None = None,
) -> None:
    """Search a world for anything that makes its history depend on the order of execution.

    Args:
        world: a world, what `make_scenario` takes (a name or a file), or a function that makes a
            scenario.
        agents: the world's agents, copied for every run. For a name: their number.
        author: answers in place of a model; None: the world's own author.
        seeds: run every check for each of them.
        steps: number of steps of each run.
        schedules: number of random schedules under each rule.
        options: for `World.reset`.
        world_options: those of the world, as the `options` of `make_scenario`; for a name.

    Raises MetropolisError with the first finding. To return without one is no proof.
    """
    found = findings(
        world,
        agents,
        author=author,
        seeds=seeds,
        steps=steps,
        schedules=schedules,
        options=options,
        world_options=world_options,
    )
    for finding in found:
        raise MetropolisError(finding.sentence)


def findings(
    world: World | str | Path | Callable[[], Scenario],
    agents: Sequence[Agent] | int | None = None,
    *,
    author: Author | None = None,
    seeds: Iterable[int] = (0, 1),
    steps: Step = 30,
    schedules: int = 3,
    options: Mapping[str, Any] | None = None,
    world_options: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Return the defects found in a world; an empty list is no proof.

    Args: see `check_world`.
    """
    steps = whole_number("steps", steps, 1)
    schedules = whole_number("schedules", schedules, 0)
    check_options(options)
    check_options(world_options, "world_options")
    check_function("author", author)
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise MetropolisError(f"seeds is {cut(seeds)}; it should be a list of whole numbers")
    if not (numbers := [seed_of(seed, "a seed") for seed in seeds]):
        raise MetropolisError("there are no seeds; at least one is needed")
    if isinstance(world, Path):
        world = f"{world}"
    found: dict[str, Finding] = {}
    for seed in numbers:
        make = _maker(world, agents, author, seed, world_options)
        elsewhere = None
        is_plain = all(isinstance(value, PLAIN) for value in (world_options or {}).values())
        if isinstance(world, str) and author is None and not options and is_plain:
            count = None if agents is None else whole_number("agents", agents, 1)
            elsewhere = partial(records_with_other_hashes, world, count, seed, steps, world_options)
        check = Checks(make, seed, steps, schedules, options or {}, elsewhere)
        try:
            new = check.findings()
        except CausalityError as error:
            new = {f"{error}": Finding("causality", f"seed {seed}: {error}")}
        found = found | new | found  # each as of its first seed
    return list(found.values())


def _maker(
    world: World | str | Callable[[], Scenario],
    agents: Sequence[Agent] | int | None,
    author: Author | None,
    seed: int,
    options: Mapping[str, Any] | None,
) -> Callable[[], Scenario]:
    if isinstance(world, str):
        # make_scenario refuses what is no number
        number: Any = agents
        make = partial(make_scenario, world, agents=number, seed=seed, options=options)
        return partial(_made, make, author)
    if options:
        raise MetropolisError(
            f"world_options is {cut(options)}, but only a world given by its name takes them"
        )
    if not isinstance(world, World):
        if not callable(world):
            raise MetropolisError(
                f"the world is {cut(world)}; it should be a World, a name, or a scenario function"
            )
        if agents is not None:
            raise MetropolisError(
                f"agents is {cut(agents)}, but a scenario function makes its own; omit agents"
            )
        return partial(_made, world, author)
    if not isinstance(agents, Sequence) or isinstance(agents, str):
        raise MetropolisError(f"the world {world.name!r} needs its agents; pass them after it")
    return lambda: Scenario(world, copies_of(agents), author)


def _made(make: Callable[[], Scenario], author: Author | None) -> Scenario:
    scenario = make()
    if not isinstance(scenario, Scenario):
        raise MetropolisError(f"{make!r} makes {scenario!r}; it should make a metropolis.Scenario")
    return scenario if author is None else replace(scenario, author=author)
