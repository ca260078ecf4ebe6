"""An engine of a few slots that decodes one token of each in a unit of time, and its programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metropolis.policy.base import Policy, QueuedRequest, ServedRequest


def waits(
    programs: Mapping[str, Sequence[Sequence[int]]],
    policy: Policy,
    slots: int,
    *,
    arrivals_first: bool = False,
) -> dict[str, int]:
    """Program -> units of time, from its arrival at 0 to its end, in which it did not decode.

    A program is a sequence of forks; a fork is the lengths of calls that run in parallel, and the
    next begins when all are over. In every unit the batch is made of those who rank first; without
    preemption, of those who run and then those who rank first. Calls change their levels before
    others arrive at the same instant, or with `arrivals_first` after that, as in the scheduler.
    """
    left: dict[int, int] = {}
    active: dict[int, QueuedRequest] = {}
    running: set[int] = set()
    forks = {name: list(program) for name, program in programs.items()}
    ended: dict[str, int] = {}
    count = 0

    def send(name: str, now: int) -> None:
        nonlocal count
        for length in forks[name].pop(0):
            request = QueuedRequest(count, name, "call", 1, now, 0.0)
            active[count], left[count] = request, length
            policy.arrived(request)
            count += 1

    def place(request: QueuedRequest) -> tuple[bool, int, float, int]:
        stays = not policy.preempts and request.id in running
        return (not stays, policy.rank(request), request.arrived_s, request.id)

    for name in programs:
        send(name, 0)
    now = 0
    while active:
        batch = {request.id for request in sorted(active.values(), key=place)[:slots]}
        for number in running - batch:
            policy.preempted(active[number], now)
        for number in sorted(batch - running):
            policy.started(active[number], now)
        now += 1
        running.clear()
        running.update(batch)
        if not arrivals_first:
            policy.passed(now)
        for number in sorted(batch):
            left[number] -= 1
            if not left[number]:
                request = active.pop(number)
                running.discard(number)
                policy.completed(ServedRequest(request, 0, request.arrived_s, now, 1))
                if not any(other.program == request.program for other in active.values()):
                    if forks[request.program]:
                        send(request.program, now)
                    else:
                        ended[request.program] = now
                        policy.program_ended(request.program)
        if arrivals_first:
            policy.passed(now)
    service = {name: sum(max(fork) for fork in program) for name, program in programs.items()}
    return {name: ended[name] - service[name] for name in programs}
