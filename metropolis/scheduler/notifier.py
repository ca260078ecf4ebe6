"""Events that the scheduler only passes on to the policy and the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate

from metropolis.dispatch.base import Dispatcher, Fleet, InstanceSpec
from metropolis.policy.base import Policy
from metropolis.policy.faults import P, PluginError, PluginT, call, raise_fault, read


class Notifier:
    """Passes events to plug-ins; their errors go to `on_fault` and end no request."""

    def __init__(
        self,
        policy: Policy,
        dispatcher: Dispatcher,
        on_fault: Callable[[PluginError], None] = raise_fault,
    ) -> None:
        self.policy, self.dispatcher, self.on_fault = policy, dispatcher, on_fault
        self.fleet: Fleet = read(dispatcher, "fleet")
        """The dispatcher's fleet, as known now."""

    def program_ended(self, program: str) -> None:
        """`program` will send no more requests."""
        self._notify(Policy.program_ended, self.policy, program)
        self._notify(Dispatcher.program_ended, self.dispatcher, program)

    def function_ended(self, function: str) -> None:
        """`function` has been unused for long."""
        self._notify(Policy.function_ended, self.policy, function)
        self._notify(Dispatcher.function_ended, self.dispatcher, function)

    def instance_lost(self, instance: int) -> None:
        """`instance` has failed and may have lost its cache."""
        self._notify(Dispatcher.lost, self.dispatcher, instance)

    def instance_preempted(self, instance: int, now_s: float) -> None:
        """`instance` ran out of memory and preempted a request by itself."""
        self._notify(Dispatcher.preempted, self.dispatcher, instance, now_s)

    def capacity_changed(self, instance: int, kv_tokens: int) -> None:
        """`instance` has a KV cache of `kv_tokens`, which the dispatcher counts on."""
        self._specify(instance, replace(self.fleet.instances[instance], capacity_tokens=kv_tokens))

    def _specify(self, instance: int, spec: InstanceSpec) -> None:
        """Replace the specification of `instance` in the fleet, also for the dispatcher."""
        instances = [*self.fleet.instances]
        if spec != instances[instance]:
            instances[instance] = spec
            self.fleet = self.dispatcher.fleet = Fleet(tuple(instances))

    def _notify(
        self,
        method: Callable[Concatenate[PluginT, P], None],
        plugin: PluginT,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Notify a plug-in; its error goes to `on_fault`."""
        try:
            call(method, plugin, *args, **kwargs)
        except PluginError as error:
            self.on_fault(error)
