"""The interface of worlds and agents: this file is its specification.

One step of an agent, in every mode (AI Metropolis, Algorithms 1 and 2):

1. `World.observe` makes the observation from a `View` of the agent's surroundings as they stand
   when the step begins.
2. `Agent.proceed` thinks, calls LLMs, and returns an action. It changes nothing but itself.
3. `World.resolve` turns the actions of one cluster into writes, which the next step sees.

A cluster are the agents whose actions may touch each other, the same in every mode: within twice
the velocity or the joint radius of one another, directly or through others (DESIGN §2).

What makes the history equal to lockstep's in every mode: a world keeps nothing but what it writes,
reads and writes no further than its radius and velocity, draws from `View.random`, and treats the
members of a cluster in an order of their own (by name, say), not in the order they come in.
`metropolis.check_world` hunts for breaches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

from metropolis.maps.map import GridMap
from metropolis.rules.metrics import CHEBYSHEV, Metric
from metropolis.types import CausalityError, Step
from metropolis.world.entities import Entity
from metropolis.world.randomness import keyed_random
from metropolis.world.transaction import Transaction
from metropolis.world.view import Reach, View

if TYPE_CHECKING:
    import gymnasium


class World(ABC):
    """The laws of a world. All state that changes lives in the engine, as entities and events."""

    name: str = "world"
    perception_radius: float
    """How far an agent perceives, in the metric's unit."""
    max_velocity: float
    """How far an agent moves, and reaches to write, in a step."""
    metric: Metric = CHEBYSHEV
    joint_radius: float | None = None
    """How far two agents may act together within a step; None: the perception radius."""
    step_s: float = 10.0
    """Simulated seconds of a step."""
    start: datetime = datetime(2023, 2, 13)
    """Simulated time at which step 0 begins."""
    map: GridMap | None = None
    author: Callable[[Any, Random], str] | None = None
    """Answers a `metropolis.llm.Request` where there is no model; None: the scripted backend's own
    words. A `Scenario` with an author sets it."""
    observation_space: gymnasium.Space[Any]
    """Of one agent; needed by the Gymnasium and PettingZoo adapters and by `check_world`."""
    action_space: gymnasium.Space[Any]

    @abstractmethod
    def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
        """Everything that exists at step 0: a body (kind `agent`) for every agent, and things.

        The same for the same seed and options.
        """

    @abstractmethod
    def observe(self, view: View) -> Any:
        """What the agent of `view` perceives."""

    @abstractmethod
    def resolve(self, cluster: Transaction) -> Awaitable[None] | None:
        """Let the actions of a cluster happen: move, write and emit in its members' names.

        May be an `async` function, which can let members `ask` each other.
        """

    @property
    def reach(self) -> Reach:
        """How far its agents see, write and act together."""
        joint = self.perception_radius if self.joint_radius is None else self.joint_radius
        return Reach(self.metric, self.perception_radius, self.max_velocity, joint)

    def reward(self, view: View) -> float:  # noqa: ARG002
        """What the agent of `view` has gained by its last step; for reinforcement learning."""
        return 0.0

    _sealed = False

    def __setattr__(self, attribute: str, value: Any) -> None:
        if self._sealed:
            raise CausalityError(
                f"the world's attribute {attribute!r} was set while the simulation runs; what "
                "changes must be written to entities, where its step and place are known"
            )
        super().__setattr__(attribute, value)

    def seal(self) -> None:
        """Refuse attributes to be set from now on: the engine is running."""
        object.__setattr__(self, "_sealed", True)

    def unseal(self) -> None:
        """The reverse of `seal`."""
        object.__setattr__(self, "_sealed", False)


class Agent(ABC):
    """Somebody who lives in a world. What it remembers is its own: nobody else reads or writes it.

    A dataclass is saved and restored by its fields, those whose names begin with an underscore left
    out; anything else defines `save` and `restore`.
    """

    name: str
    """Unique; the body in the world has the same name."""
    step: Step = 0
    """The step it is at; kept by the engine."""

    @abstractmethod
    def proceed(self, observation: Any, llm: Any) -> Any:
        """The action for this step; plain or `async`.

        A plain function is run in a thread if it is given an `llm` (a
        `metropolis.llm.BlockingLLM`); an `async` one awaits its calls (`metropolis.llm.LLM`), in
        parallel where it likes with `asyncio.gather`.
        """

    def answer(self, question: Any, llm: Any) -> Any:
        """What another member of the cluster is told who asks; plain or `async` like `proceed`."""
        raise NotImplementedError(
            f"{type(self).__name__}.answer is not defined, and {question!r:.80} was asked"
        )

    @property
    def random(self) -> Random:
        """Draws that depend on (seed, agent, step) only."""
        if self._drawn_at != self.step:
            self._random = keyed_random(self._seed, self.name, self.step, "Agent")
            self._drawn_at = self.step
        return self._random

    _has_lived = False
    """In a run, which has changed it."""
    _seed: int = 0
    _drawn_at: Step = -1
    _random: Random

    def begin(self, seed: int, step: Step) -> None:
        """Called by the engine before `proceed`."""
        self._seed, self.step, self._drawn_at = seed, step, -1
