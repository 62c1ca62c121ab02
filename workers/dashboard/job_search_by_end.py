"""Lists finished jobs by their time of end, newest first, in bounded steps.

The walk goes back in time in growing periods. Each is read by the summaries that say which pages of
the history can hold a match. As `job_search`, it returns what was found in its time, and how far it
came. Live jobs have no end: they are not in this list.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.workers.dashboard.job_search import BUDGET, LARGEST, MOST, Found, JobSearch, cover_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.filters import Wanted

FIRST: Final = 60.0
"""Seconds of the first period. Each may be 8 times as long as the one before, or 32 times if nothing was found."""
SHORTEST: Final = 1.0
"""Seconds of a period that is not divided further: many jobs may have ended at the same time."""
LONGEST: Final = 100 * 365 * 86400.0
AHEAD: Final = 86400.0
"""Seconds by which the clock of a worker may be ahead of the database."""
SAME: Final = 200_000
"""Jobs of the shortest period that are sorted."""
EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""No job ended before this time."""
NONE: Final = -(2**63)
"""Every id is larger."""


async def search_jobs_by_end(
    database: Database,
    wanted: Wanted,
    *,
    before: tuple[datetime, int] | None = None,
    limit: int = 50,
    budget: float = BUDGET,
    hidden: Mapping[str, Sequence[str]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Return the matching finished jobs that ended last before `before`, a time of end and an id.

    The other arguments are those of `job_search.search_jobs`. `Found.ended_before` says where the next
    search begins.
    """
    hidden = hidden or {}
    [known] = await database.rows("dashboard/show_newest_end")
    now = known["now"]
    among = wanted.among(FINAL_STATES)
    if among is None:
        return Found(asked_at=now)
    search = JobSearch(database, among.parameters(now) | {"hidden": list(hidden)}, clock, clock() + budget)
    since = search.parameters["since"] or EARLIEST
    top, below = before or (now + timedelta(seconds=AHEAD), LARGEST)
    if until := search.parameters["until"]:
        top = min(top, until)
    # The first period reaches back to the newest job, however long ago that ended.
    empty = max(0.0, (top - min(now, known["ended"] or now)).total_seconds())
    period = empty + FIRST
    found = search.found
    while len(found.rows) < limit and top > since:
        low = max(since, top - timedelta(seconds=min(period, (top - since).total_seconds())))
        began = clock()
        rows = await search.rows(
            "dashboard/list_finished_by_end",
            "dashboard/force_block_summaries",
            low=low,
            high=top,
            before=below,
            most=MOST if period > SHORTEST else SAME,
            limit=limit - len(found.rows),
        )
        if rows is None:
            break
        if rows[0]["found"] >= MOST and period > SHORTEST:
            # First without the time before the newest job, then less and less.
            period = empty if period > empty > 0 else max(SHORTEST, period / 8)
            continue
        search.take(rows)
        grown = max(FIRST, period - empty) * (8 if found.rows else 32) if low < now else FIRST
        top, below, empty = low, NONE, 0.0  # the jobs that ended at this time were in the period
        took = max(clock() - began, 1e-6)
        period = max(SHORTEST, min(grown, period * max(search.left, 0) / 2 / took, LONGEST))
    found.is_full = len(found.rows) >= limit
    found.ended_before = _onward(found.rows, top, since, is_full=found.is_full)
    cover_errors(found, hidden)
    return found


def _onward(rows: list[Row], top: datetime, since: datetime, *, is_full: bool) -> tuple[datetime, int] | None:
    if is_full:
        return rows[-1]["finished_at"], int(rows[-1]["id"])
    return (top, NONE) if top > since else None
