"""The running phase in virtual time: a schedule meets lengths and speeds that it did not know."""

from __future__ import annotations

from metropolis.plan.follow import Follower
from metropolis.plan.schedule import Schedule, ScheduleStage, stage_of
from metropolis.plan.search.candidates import can_run, kept
from metropolis.plan.timeline import Timeline
from metropolis.types import MetropolisError


def simulate_run(timeline: Timeline, schedule: Schedule) -> Schedule:
    """What happens if the application of `timeline` runs by `schedule` (simulated)."""
    moment = timeline.start()

    follower = Follower(schedule.planned, lambda stage: can_run(timeline, moment, stage))
    passed = list[ScheduleStage]()
    while moment.unfinished:
        stage = follower.next_stage(moment.unfinished, kept(moment))
        outlook = timeline.outlook(moment, stage, follower.boundary)
        if outlook is None or not outlook.ends_s < float("inf"):
            raise MetropolisError(f"the schedule stops: {sorted(moment.unfinished)} do not finish")
        passed.append(stage_of(outlook, moment, follower.boundary))
        moment = timeline.after(outlook)
    return Schedule(schedule.method, tuple(passed))
