"""A world with its agents, and its lookup by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from typing import Any

from metropolis.durable import reachable
from metropolis.names import cut, did_you_mean
from metropolis.notebook.card import card, listed
from metropolis.types import MetropolisError
from metropolis.world.base import Agent, World, drawings_of, facts_of
from metropolis.world.checks import check_options, check_world_parts, seed_of, whole_number
from metropolis.world.record import StepRecord
from metropolis.world.scenario_options import keyword_arguments
from metropolis.world.user_code import file_of, load_function, load_installed, names_file
from metropolis.world.user_errors import describe_error

GROUP = "metropolis.worlds"
"""Entry points: name -> a function (*, agents: int | None, seed: int) -> Scenario; further keyword
parameters are the world's options."""
FOLDERS = "metropolis.folders"
"""Entry points: name -> the same, with the folder that holds `name.json` as first argument."""
_DOES = "takes agents and seed and returns a metropolis.Scenario"


def plain_story(record: StepRecord) -> Sequence[str]:
    """The events of a step, a line each: source, kind and data."""
    return [
        " ".join([event.source, event.kind, *map(str, event.data.values())])
        for event in record.events
    ]


def told(scenario: Scenario, record: StepRecord) -> Sequence[str]:
    """The sentences of the scenario's story.

    Raises MetropolisError if it fails, or returns others.
    """
    try:
        returned: Any = scenario.story(record)
        is_list = isinstance(returned, Iterable) and not isinstance(returned, str)
        sentences = list(returned) if is_list else None
    except (Exception, SystemExit) as error:
        raise MetropolisError(describe_error(error, None)) from error
    if sentences is not None and all(isinstance(one, str) for one in sentences):
        return sentences
    raise MetropolisError(
        f"the scenario's story returned {cut(returned)}; it should return a list of sentences"
    )


@dataclass(frozen=True)
class Scenario:
    """A world with its agents, an author for runs without a model, and a story.

    Raises MetropolisError on a field of a wrong type or value.
    """

    world: World
    agents: Sequence[Agent]
    author: Callable[[Any, Random], str] | None = None
    """Becomes the author of `world`; None: the world keeps its own, if it has one."""
    story: Callable[[StepRecord], Sequence[str]] = plain_story
    """Sentences that describe a step to the user; called in order of steps.

    The command line prints the time before each line that does not begin with a space.
    """
    steps: int = 360
    """Default length of a run, in steps."""
    functions: tuple[str, ...] = ()
    """The functions of its agents' calls, with which options are checked; empty: unknown."""

    def __post_init__(self) -> None:
        check_world_parts(self.world, self.agents)
        for name, value in (("author", self.author), ("story", self.story)):
            if not (callable(value) or (value is None and name == "author")):
                raise MetropolisError(
                    f"the scenario's {name} is {cut(value)}; it should be a function"
                )
        functions: Any = self.functions
        if not isinstance(functions, tuple) or not all(isinstance(f, str) for f in functions):
            raise MetropolisError(
                f"the scenario's functions are {cut(functions)}; they should be a tuple of texts"
            )
        object.__setattr__(self, "steps", whole_number("the scenario's steps", self.steps, 1))
        if self.author is not None:
            self.world.author = self.author

    def _repr_html_(self) -> str:
        names = listed([agent.name for agent in self.agents])
        facts = {
            "agents": f"{len(self.agents):,}: {names}",
            "length": f"{self.steps:,} steps",
            "functions": listed(self.functions) or None,
        }
        return card(
            "scenario", self.world.name, facts | facts_of(self.world), drawings_of(self.world)
        )


def scenario_names() -> list[str]:
    """The names of the installed worlds."""
    return sorted(point.name for point in entry_points(group=GROUP))


def make_scenario(
    name: str | Path,
    *,
    agents: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Scenario:
    """Make the scenario `name`; `agents` is their number, None: the world's default.

    `name` is an installed world, a folder such as `metropolis world import-genagent` writes, or
    `FILE.py` or `FILE.py:FUNCTION` with a function like those of the entry points (by default
    `make`). `options` are its other keyword arguments; texts are converted to their types. Raises
    MetropolisError when the world or an option does not exist, and on a wrong number.
    """
    if not isinstance(name, str | Path) or name == "":
        raise MetropolisError(
            f"the world is {name!r}; it should be a name, a folder, or FILE.py:FUNCTION as text"
        )
    if agents is not None:
        agents = whole_number("agents", agents, 1)
    seed = seed_of(seed)
    check_options(options)
    name = str(name)
    maker = _maker(name)
    scenario = maker(agents=agents, seed=seed, **keyword_arguments(maker, name, options or {}))
    if not isinstance(scenario, Scenario):
        raise MetropolisError(
            f"the function of the world {name!r} returned a value of type "
            f"{type(scenario).__name__}; it should return a metropolis.Scenario"
        )
    return scenario


def is_folder_of_world(name: str) -> bool:
    """Whether the world `name` is a folder; installed worlds take precedence."""
    return name not in scenario_names() and Path(name).is_dir()


def files_sha256(name: str) -> str | None:
    """A hash of the file or of the folder that the world `name` is made from.

    None for an installed world. What a file imports does not count. Raises MetropolisError if a
    file cannot be read.
    """
    if names_file(name):
        files = [file_of(name)]
    elif is_folder_of_world(name):
        files = sorted(path for path in Path(name).iterdir() if path.is_file())
    else:
        return None
    digest = sha256()
    for file in files:
        try:
            digest.update(sha256(file.name.encode()).digest() + sha256(file.read_bytes()).digest())
        except OSError as error:
            raise MetropolisError(f"{file}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _maker(name: str) -> Callable[..., Any]:
    if names_file(name):
        return load_function(name, _DOES, default="make")
    for point in entry_points(group=GROUP, name=name):
        return load_installed(point, _DOES)
    if reachable(Path(name)).is_dir():
        return _folder_maker(Path(name))
    if Path(name).name != name:
        raise MetropolisError(
            f"there is no folder {name}; name the folder of a world, or a FILE.py"
        )
    raise MetropolisError(
        f"there is no world {name!r}{did_you_mean(name, scenario_names())}; there are "
        f"{', '.join(scenario_names())}; FILE.py with a function make and the folder of a world "
        "are also accepted"
    )


def _folder_maker(folder: Path) -> Callable[..., Any]:
    for point in entry_points(group=FOLDERS):
        if reachable(folder / f"{point.name}.json").is_file():
            return partial(load_installed(point, _DOES), folder)
    known = " or ".join(sorted(f"{point.name}.json" for point in entry_points(group=FOLDERS)))
    raise MetropolisError(f"{folder} holds no world; it should contain {known}")
