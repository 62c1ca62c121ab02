"""trending:compute: append a snapshot of recent activity, regularly.

Each run enqueues the next one before it does anything else, so that a failed run does not end the
chain. The plan is one row: a run locks it, and enqueues the next run only if none is still to come.
However often a run is started by hand, there is one chain. Snapshots are only appended, one per
job.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jobherd import Duration, Job, Poison, handler
from jobherd.handlers._policy.durations import positive
from jobherd.handlers.forge._database import transaction

if TYPE_CHECKING:
    from jobherd.handlers.forge._database import Database

EVERY: Final = 600
"""Seconds between runs. Runs start at whole multiples of it, so the times of snapshots do not
drift."""
WINDOW_DAYS: Final = 7


@handler("trending:compute", timeout="2m")
def trending_compute(job: Job, every: int = EVERY, days: int = WINDOW_DAYS) -> dict[str, Any]:
    """Append a snapshot of the most active repositories, and enqueue the next run.

    every: seconds between runs, default 600; 0 enqueues no next run. days: period to evaluate,
    default 7. Returns the best five and the id of the next job. To start the chain, or to restart
    it, enqueue it once.

    >>> trending_compute.enqueue()  # doctest: +SKIP
    42
    """
    if not (0 <= every <= 86400 * 30 and 0 < days <= 3650):
        raise Poison("every must be 0 to 30 days in seconds, and days 1 to 3650")
    with transaction() as database:
        following = plan_next(database, every=every, days=days, job=job.id) if every else None
    with transaction() as database:
        if database.row("forge/find_trending", job=job.id) is not None:
            return {"skipped": "this job has appended its snapshot before", "next_job": following}
        best = database.rows("forge/append_trending", job=job.id, window=days * 86400.0)
    shown = [{"name": row["name"], "score": row["score"]} for row in best if row["place"]]
    return {"best": shown[:5], "repositories": len(shown), "next_job": following}


def plan_next(
    database: Database, *, every: int = EVERY, days: int = WINDOW_DAYS, job: int = 0, delay: Duration | None = None
) -> int:
    """Enqueue the next run unless one is planned already. Return the id of the planned job.

    database: an open transaction; the plan stays locked until its end. every, days: as for the
        handler.
    job: id of the calling run, which does not count as planned; default 0, none.
    delay: delay of the next run. Default: until the next multiple of `every`.
    """
    database.one("forge/lock_trending_plan")
    planned = database.row("forge/find_planned_trending", job=job)
    if planned is not None:
        return int(planned["job"])
    if delay is None:
        wait = every - time.time() % every
        if wait < every / 10:  # a clock slightly behind the database's: the calling run is the one that was due
            wait += every
    else:
        wait = positive(delay, field="delay")
    following = trending_compute.options(connection=database.connection, delay=wait).enqueue(every=every, days=days)
    database.rows("forge/plan_trending", job=following)
    return following
