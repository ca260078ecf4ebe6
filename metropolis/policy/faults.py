"""What a policy or dispatcher must not return or raise: one sentence that names it."""

from __future__ import annotations

from metropolis.policy.base import Policy, QueuedRequest
from metropolis.types import MetropolisError
from metropolis.world.mistakes import sentence_of


class PluginError(MetropolisError):
    """The policy or dispatcher `plugin` breaks its interface."""

    def __init__(self, kind: str, plugin: object, fault: str) -> None:
        self.plugin = f"the {kind} {type(plugin).__name__}"
        super().__init__(f"{self.plugin} {fault}")


def failed(kind: str, plugin: object, error: BaseException) -> PluginError:
    """What to raise for `error`, which the code of `plugin` has raised."""
    return PluginError(kind, plugin, f"failed: {sentence_of(error, plugin)}")


def tell_arrived(policy: Policy, request: QueuedRequest) -> None:
    """Tell `policy` that `request` waits; raises PluginError if it fails."""
    try:
        policy.arrived(request)
    except MetropolisError:
        raise
    except (Exception, SystemExit) as error:
        raise failed("policy", policy, error) from error


def rank_of(policy: Policy, request: QueuedRequest) -> int:
    """The policy's rank for `request`; raises PluginError if it fails or gives no rank."""
    try:
        rank = policy.rank(request)
    except MetropolisError:
        raise
    except (Exception, SystemExit) as error:
        raise failed("policy", policy, error) from error
    if type(rank) is int and 0 <= rank < 1 << policy.rank_bits:
        return rank
    bits = policy.rank_bits
    fault = f"gave a request the rank {rank!r}; a rank is an int from 0 to below 2 ** {bits}"
    raise PluginError("policy", policy, fault)
