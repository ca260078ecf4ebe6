"""The interface of worlds and agents: this file is its specification.

One step of an agent, in every mode (AI Metropolis, Algorithms 1 and 2):

1. `World.observe` makes the observation from a `View` of the agent's surroundings as they stand
   when the step begins.
2. `Agent.proceed` calls LLMs and returns an action. It changes only the agent's own state.
   `Agent.routine`, if defined, comes before it: it may return the action without a model.
3. `World.resolve` turns the actions of one cluster into writes, which are visible to the next step.

A cluster is a set of agents whose actions may conflict, the same in every mode: each is within
twice the velocity or the joint radius of another member, directly or transitively (`clusters.py`).

The history equals lockstep's in every mode if a world keeps no state except what it writes, reads
and writes no further than its radius and velocity, draws from `View.random`, and processes the
members of a cluster in a fixed order (by name, for example), not in the order of iteration.
`metropolis.check_world` searches for violations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from metropolis.maps.map import GridMap
from metropolis.names import cut
from metropolis.notebook.card import card, figure
from metropolis.rules.metrics import CHEBYSHEV, Metric
from metropolis.types import CausalityError, MetropolisError, Position, Step
from metropolis.world.appearance import Appearance
from metropolis.world.entities import Entity
from metropolis.world.randomness import keyed_random
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reach, View

if TYPE_CHECKING:
    import gymnasium


class Undecided(Enum):
    """The type of `UNDECIDED`."""

    UNDECIDED = "undecided"


class World(ABC):
    """The laws of a world. The engine keeps all mutable state, as entities and events."""

    name: str = "world"
    perception_radius: float
    """The distance within which an agent perceives, in the metric's unit."""
    max_velocity: float
    """The distance within which an agent moves and writes in a step, in the metric's unit."""
    metric: Metric = CHEBYSHEV
    joint_radius: float | None = None
    """The distance within which two agents act together in a step; None: the perception radius."""
    step_s: float = 10.0
    """Simulated duration of a step, in seconds."""
    start: datetime = datetime(2023, 2, 13)
    """Simulated time at which step 0 begins."""
    map: GridMap | None = None
    appearance: Appearance = Appearance()
    """What the viewer shows of bodies, events and minds; see `metropolis.world.appearance`."""
    author: Callable[[Any, Random], str] | None = None
    """Answers a `metropolis.llm.Request` when there is no model; None: the scripted backend's own
    text. A `Scenario` with an author sets it."""
    observation_space: gymnasium.Space[Any]
    """Space of one agent; the Gymnasium and PettingZoo adapters and `check_world` need it."""
    action_space: gymnasium.Space[Any]

    @abstractmethod
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        """Return everything that exists at step 0: a body (kind `agent`) per agent, and things.

        The result is the same for the same seed and options.
        """

    @abstractmethod
    def observe(self, view: View) -> Any:
        """Return the observation of the agent that owns `view`."""

    @abstractmethod
    def resolve(self, cluster: Transaction) -> Awaitable[None] | None:
        """Apply the actions of a cluster: move, write and emit through its members.

        May be an `async` function, in which members can `ask` each other.
        """

    @property
    def reach(self) -> Reach:
        """The distances within which agents perceive, write and act together."""
        joint = self.perception_radius if self.joint_radius is None else self.joint_radius
        return Reach(self.metric, self.perception_radius, self.max_velocity, joint)

    def _repr_html_(self) -> str:
        return card(f"world, {type(self).__name__}", self.name, facts_of(self), drawings_of(self))

    def reward(self, view: View) -> float:  # noqa: ARG002
        """Return the agent's reward for its last step; for reinforcement learning."""
        return 0.0

    _sealed = False

    def __setattr__(self, attribute: str, value: Any) -> None:
        if self._sealed:
            raise CausalityError(
                f"the world's attribute {attribute!r} was set while the simulation runs; mutable "
                "state must be written to entities, which record its step and position"
            )
        super().__setattr__(attribute, value)

    def seal(self) -> None:
        """Make attributes read-only; the engine calls this when a run starts."""
        object.__setattr__(self, "_sealed", True)

    def unseal(self) -> None:
        """Make attributes writable again."""
        object.__setattr__(self, "_sealed", False)


UNDECIDED: Final = Undecided.UNDECIDED
"""What `Agent.routine` returns if `Agent.proceed` should decide."""

Tables: TypeAlias = Mapping[str, Sequence[Mapping[str, str | float]]]
"""Title -> rows, each of which is column -> text or number."""


class UnsupportedError(MetropolisError):
    """The agents of a world do not define an optional method that was called."""


class Agent(ABC):
    """An actor in a world. Its state is private: no other agent or world reads or writes it.

    A dataclass is saved and restored by its fields, except those whose names begin with an
    underscore; any other class defines `save(self)`, which returns plain data, and
    `restore(self, saved)`, which gets them as JSON returns them.
    """

    name: str
    """Unique; the agent's body in the world has the same name."""
    step: Step = 0
    """The agent's current step; set by the engine."""

    @abstractmethod
    def proceed(self, observation: Any, llm: Any) -> Any:
        """Return the action for this step; plain or `async`.

        A plain function runs in a thread if it is given an `llm` (a `metropolis.llm.BlockingLLM`).
        An `async` function awaits its calls (`metropolis.llm.LLM`), and may use `asyncio.gather`
        to make several in parallel.
        """

    def routine(self, observation: Any) -> Any:  # noqa: ARG002
        """Return the action for this step if it needs no model; else `metropolis.UNDECIDED`.

        Optional: it saves the coroutine or thread of `proceed`, and must return the action that
        `proceed` would return. So a class that redefines `proceed` redefines `routine`, too. After
        UNDECIDED the engine calls `proceed`. Before it returns UNDECIDED, `routine` must not change
        the agent in any way that `proceed` would not.
        """
        return UNDECIDED

    def answer(self, question: Any, llm: Any) -> Any:
        """Return the answer to another member's question; plain or `async` like `proceed`.

        Raises NotImplementedError unless overridden: only agents of worlds that `ask` need it.
        """
        raise NotImplementedError(  # not abstract: most agents are never asked
            f"{type(self).__name__}.answer is not defined; the question is {cut(question)}"
        )

    async def interview(self, question: str, llm: Any) -> str:  # noqa: ARG002
        """Return the answer to the question of an interviewer; `llm` is a `metropolis.llm.LLM`.

        `metropolis ask` calls it, on a copy of the agent that is thrown away. Raises
        UnsupportedError unless overridden.
        """
        raise UnsupportedError(
            "agents of this world answer no interviews: "
            f"{type(self).__name__}.interview is not defined"
        )

    def whisper(self, text: str) -> None:  # noqa: ARG002
        """Treat `text`, which an inner voice says, as a thought of the agent itself.

        `metropolis whisper` calls this method between two steps of a branch. Raises
        UnsupportedError unless overridden.
        """
        raise UnsupportedError(
            f"agents of this world hear no whispers: {type(self).__name__}.whisper is not defined"
        )

    def tables(self) -> Tables:
        """Return the mind as tables for `metropolis show`; empty: it prints the saved fields.

        Called on a copy of the agent.
        """
        return {}

    def intent(self, position: Position) -> Iterable[Position]:  # noqa: ARG002
        """Where the agent expects to be at the beginnings of the steps after the next one.

        `position` is the agent's position at the beginning of the next step. After the positions
        that this method returns, the agent is assumed to stay at the last one. Others that run
        ahead use this prediction: a wrong one costs time, and never changes a history. Called
        between steps; must not change the agent.
        """
        return ()

    @property
    def random(self) -> Random:
        """A generator whose draws depend on (seed, agent, step) only."""
        if self._drawn_at != self.step:
            self._random = keyed_random(self._seed, self.name, self.step, "Agent")
            self._drawn_at = self.step
        return self._random

    _used_in_run = False
    """Whether a run has used this agent, and so changed it."""
    _seed: int = 0
    _drawn_at: Step = -1
    _random: Random

    def begin_step(self, seed: int, step: Step) -> None:
        """Set the seed and the step; the engine calls this before `proceed`."""
        self._seed, self.step, self._drawn_at = seed, step, -1


def facts_of(world: World) -> dict[str, object]:
    """Facts about the world for notebooks; None for attributes that a subclass has not set yet."""
    return {
        "perception radius": getattr(world, "perception_radius", None),
        "joint radius": world.joint_radius,
        "maximum velocity": getattr(world, "max_velocity", None),
        "metric": world.metric.name,
        "step": f"{world.step_s:g} s, from {world.start:%Y-%m-%d %H:%M}",
        "without a model": None if world.author is None else "its own author answers",
    }


def drawings_of(world: World) -> list[str]:
    """Figures for notebooks, as HTML."""
    return [] if world.map is None else [figure(world.map.drawing(), f"Map: {world.map.name}.")]
