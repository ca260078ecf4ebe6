"""Checks of `check_store`: late commits of a worker that has claimed the cluster again before.

It may have begun the step once more, and so have changed its copy of the mind.
"""

from __future__ import annotations

from metropolis.store.checked_run import LEASE_S, CheckedRun
from metropolis.store.claim import Claim, Lookahead
from metropolis.types import Dispatch


def _claimed_again(run: CheckedRun) -> Claim:
    """The claim of a cluster that the same worker has claimed again, and that is ready now."""
    late, _ = run.claim("first", 0), run.claim("first", 0)
    run.dispatch((0, (1,)))
    run.claim("other")  # finds that the claims have expired
    return late


def _check_late_commit(run: CheckedRun) -> None:
    run.step(0)
    run.dispatch((1, (0,)))
    late = _claimed_again(run)
    for _ in range(2):
        run.require(run.commit(late), "refuses a late commit of an unclaimed cluster")
    run.dispatch((2, (0,)))
    run.require(run.claim().minds != {}, "does not send a mind that a worker may have changed")


def _check_late_commit_that_continues(run: CheckedRun) -> None:
    run.step(0)
    ahead = {0: Lookahead(3, (0, 0), 20.0)}
    run.store.dispatch(run.fence, [Dispatch(1, (0,))], {}, 0, ahead)
    late = _claimed_again(run)
    for _ in range(2):
        run.require(run.commit(late, lease_s=LEASE_S), "refuses a late commit that continues")
    run.require(
        run.commit(late.following(run.execution_of(late))), "refuses the commit of the next step"
    )
    run.dispatch((3, (0,)))
    run.require(run.claim().minds != {}, "does not send a mind that a worker may have changed")


LATE_COMMIT_CHECKS = _check_late_commit, _check_late_commit_that_continues
