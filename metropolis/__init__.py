"""metropolis runs societies of LLM agents out of order, with a history equal to lockstep's."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from metropolis.adapters.registration import register

if TYPE_CHECKING:  # the same names as _PUBLIC, which a test compares
    from metropolis.adapters.parallel import parallel_env as parallel_env
    from metropolis.adapters.single import SingleAgentWorld as SingleAgentWorld
    from metropolis.llm.client import Client as Client
    from metropolis.runtime.checks.check_world import check_world as check_world
    from metropolis.runtime.live.configuration import RunConfiguration as RunConfiguration
    from metropolis.runtime.live.simulation import Simulation as Simulation
    from metropolis.runtime.reruns.edit_context import Moment as Moment
    from metropolis.runtime.reruns.fork import fork as fork
    from metropolis.runtime.reruns.verify import verify as verify
    from metropolis.runtime.reruns.whisper import Whisper as Whisper
    from metropolis.types import CausalityError as CausalityError
    from metropolis.types import MetropolisError as MetropolisError
    from metropolis.world.appearance import Appearance as Appearance
    from metropolis.world.base import UNDECIDED as UNDECIDED
    from metropolis.world.base import Agent as Agent
    from metropolis.world.base import World as World
    from metropolis.world.entities import Entity as Entity
    from metropolis.world.entities import Event as Event
    from metropolis.world.record import StepRecord as StepRecord
    from metropolis.world.scenario import Scenario as Scenario
    from metropolis.world.scenario import make_scenario as make_scenario
    from metropolis.world.spaces import Choice as Choice
    from metropolis.world.spaces import FreeText as FreeText
    from metropolis.world.spaces import Maybe as Maybe
    from metropolis.world.spaces import Record as Record
    from metropolis.world.transaction import Member as Member
    from metropolis.world.transaction import Transaction as Transaction
    from metropolis.world.view import View as View

_PUBLIC = {
    "Agent": "metropolis.world.base",
    "Appearance": "metropolis.world.appearance",
    "CausalityError": "metropolis.types",
    "Choice": "metropolis.world.spaces",
    "Client": "metropolis.llm.client",
    "Entity": "metropolis.world.entities",
    "Event": "metropolis.world.entities",
    "FreeText": "metropolis.world.spaces",
    "Maybe": "metropolis.world.spaces",
    "Member": "metropolis.world.transaction",
    "MetropolisError": "metropolis.types",
    "Moment": "metropolis.runtime.reruns.edit_context",
    "Record": "metropolis.world.spaces",
    "RunConfiguration": "metropolis.runtime.live.configuration",
    "Scenario": "metropolis.world.scenario",
    "SingleAgentWorld": "metropolis.adapters.single",
    "Simulation": "metropolis.runtime.live.simulation",
    "StepRecord": "metropolis.world.record",
    "Transaction": "metropolis.world.transaction",
    "UNDECIDED": "metropolis.world.base",
    "View": "metropolis.world.view",
    "Whisper": "metropolis.runtime.reruns.whisper",
    "World": "metropolis.world.base",
    "check_world": "metropolis.runtime.checks.check_world",
    "fork": "metropolis.runtime.reruns.fork",
    "make_scenario": "metropolis.world.scenario",
    "parallel_env": "metropolis.adapters.parallel",
    "verify": "metropolis.runtime.reruns.verify",
}
"""Name -> its module, imported on first access so that `import metropolis` stays fast."""

# without parallel_env, which needs the extra pettingzoo
__all__ = [
    "UNDECIDED",
    "Agent",
    "Appearance",
    "CausalityError",
    "Choice",
    "Client",
    "Entity",
    "Event",
    "FreeText",
    "Maybe",
    "Member",
    "MetropolisError",
    "Moment",
    "Record",
    "RunConfiguration",
    "Scenario",
    "Simulation",
    "SingleAgentWorld",
    "StepRecord",
    "Transaction",
    "View",
    "Whisper",
    "World",
    "check_world",
    "fork",
    "make_scenario",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
        return found  # stored in globals: faster next time, and pdoc looks there
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]


if find_spec("metropolis._core") is None:
    raise ImportError(
        f"{__path__[0]} holds only the sources of metropolis, which hide the installation: start "
        "Python in another folder or with -P, or install the clone with pip install -e ."
    )
register()
