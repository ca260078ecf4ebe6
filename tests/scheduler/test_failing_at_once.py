"""An instance of the simulation that fails and is up again within one instant."""

import asyncio

from tests.scheduler.test_both_drivers import Driven, disturbed, live


def test_an_instance_that_fails_and_is_up_again_at_once() -> None:
    """The policy may preempt a request that is leaving."""
    downs = [(0.0, "down", 1), (0.0, "down", 2), (0.3, "down", 0)]
    plan = [*[(0.0, "arrive", 0)] * 4, *downs, (0.0, "arrive", 1), (0.0, "up", 0)]
    stream = disturbed("step+atlas", "round_robin", plan)
    commands = asyncio.run(live("step+atlas", "round_robin", stream, Driven)).commands
    assert commands == stream.commands
