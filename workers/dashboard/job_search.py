"""Searches jobs: newest first by id, live and finished ones in one list, in bounded steps.

The live tables are walked along their ids, up to a number of rows. Of the history the newest jobs
are walked first, which fills the page if many jobs match. If few match, the search continues in
growing ranges of ids, each read by the summaries that say which pages can hold a match
(sql/schema/03_history.sql). When the time is up, it returns what was found and the id down to
which it searched: never an error, never a scan to the end. Must not change a job, or count more
than is shown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors

from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.workers.dashboard.filters import LIVE, STATES, TROUBLED
from jobherd.workers.dashboard.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.filters import Wanted

LARGEST: Final = 2**63 - 1
BUDGET: Final = 2.0
"""Seconds that a search may take."""
SCAN: Final = 50_000
"""Rows of each live table that a search with a filter walks past."""
FIRST: Final = 10_000
"""Rows of the history that it walks past before it continues in ranges."""
STRETCH: Final = 12
"""The size of a range is 2 to the power of this, as in history_in_brief."""
WIDTH: Final = 16
"""Ranges in the first step; each may be 8 times as long as the one before, or 32 times if nothing was found."""
MOST: Final = 5_000
"""Jobs that a step may find; if there are more, a shorter step follows.

More than one range can hold.
"""


@dataclass(slots=True)
class Found:
    """The result of a search."""

    rows: list[Row] = field(default_factory=list)
    """Newest first, no more than requested."""
    floor: int = 0
    """Below this id nothing is known; 0: the search is complete."""
    is_full: bool = False
    """As many as requested: there may be more."""
    is_late: bool = False
    """The time was up."""
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ended_before: tuple[datetime, int] | None = None
    """Where the next search by time of end begins: before this time and id. None: there is nothing more."""

    @property
    def onward(self) -> int | None:
        """The id before which the next search begins; None if there is nothing more."""
        if self.is_full:
            return int(self.rows[-1]["id"])
        return self.floor or None


async def search_jobs(
    database: Database,
    wanted: Wanted,
    *,
    before: int = LARGEST,
    limit: int = 50,
    scan: int = SCAN,
    budget: float = BUDGET,
    hidden: Mapping[str, Sequence[str]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Return the newest matching jobs with ids below `before`.

    limit: how many, up to 10,000.
    scan: rows of each live table to walk past.
    budget: seconds.
    hidden: the redacted paths by kind; the errors of these jobs are redacted. Text is searched only in
        jobs of kinds that are declared and redact nothing.
    The order that the filter names does not count: `job_search_by_end` has the other one.
    Raises as Database.rows, except when the time is up.

    >>> await search_jobs(database(request), Wanted(states=("failed",), since="24h"))  # doctest: +SKIP
    """
    hidden = hidden or {}
    now = (await database.rows("observe/show_time"))[0]["now"] if wanted.is_relative else datetime.now(UTC)
    search = JobSearch(
        database,
        wanted.parameters(now) | {"before": before, "limit": limit, "hidden": list(hidden)},
        clock,
        clock() + budget,
    )
    states = wanted.states or STATES
    low = 0
    if any(state in LIVE for state in states):
        low = await search.live(limit if wanted.is_everything else max(scan, limit))
    if any(state in FINAL_STATES for state in states) and low < before:
        troubled = all(state in {*LIVE, *TROUBLED} for state in states)
        low = max(low, await search.past(low, limit if wanted.is_everything else max(FIRST, limit), troubled=troubled))
    found = search.found
    # a job that finished between two steps was found by both
    last_seen = {row["id"]: row for row in found.rows if row["id"] >= low}
    found.rows = sorted(last_seen.values(), key=lambda row: -row["id"])[:limit]
    found.is_full, found.floor = len(found.rows) >= limit, low
    cover_errors(found, hidden)
    return found


def cover_errors(found: Found, hidden: Mapping[str, Sequence[str]]) -> None:
    """Remove from the errors what is redacted in the payloads."""
    for row in found.rows:
        row["error"] = redact_text(row["error"], row["payload"], hidden.get(row["kind"], ()))


@dataclass(slots=True)
class JobSearch:
    """One search: its steps, and the time that is left for them."""

    database: Database
    parameters: dict[str, Any]
    clock: Callable[[], float]
    until: float
    found: Found = field(default_factory=Found)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.until - self.clock()

    async def live(self, scan: int) -> int:
        """Add live jobs; return the id down to which was searched."""
        rows = await self.rows("dashboard/list_live", "dashboard/force_id_order", scan=scan)
        if rows is None:
            return int(self.parameters["before"])
        limit: int = self.parameters["limit"]
        if self.take(rows) >= limit:
            return int(rows[limit - 1]["id"])  # the page ends there: older finished jobs are not needed
        return int(rows[0]["floor"])

    async def past(self, low: int, scan: int, *, troubled: bool) -> int:
        """Add finished jobs, down to `low`; return the id down to which was searched."""
        rows = await self.rows("dashboard/list_finished", "dashboard/force_id_order", scan=scan, troubled=troubled)
        if rows is None:
            return int(self.parameters["before"])
        got, top, limit = self.take(rows), int(rows[0]["floor"]), int(self.parameters["limit"])
        width, seen, dense = WIDTH, scan, -1
        jump = 0
        if got < limit and top > max(low, 1) and self.parameters["until"] is not None:
            jump = await self.ranges_after(top)
            width = jump or width
        while got < limit and top > max(low, 1):
            high = (top - 1) >> STRETCH
            if high >= dense >= 0:
                # The dense region begins in this range: halve the width until it is found.
                width = min(width, max(1, (high - dense + 1) // 2))
            bottom = max(high - width + 1, 0)
            began = self.clock()
            rows = await self.rows(
                "dashboard/list_finished_ranges",
                "dashboard/force_block_summaries",
                before=top,
                low=bottom,
                high=high,
                most=MOST,
                limit=limit - got,
            )
            if rows is None:
                break
            if rows[0]["found"] >= MOST and width > 1:
                dense = bottom  # the result was cut off, so these are not the newest
                continue
            got, top = got + self.take(rows), bottom << STRETCH
            seen += width << STRETCH
            # Wide enough that the page is probably full, and no wider than the time allows.
            wide = min(width * 8, max(1, int((limit - got) * 1.5 * seen / got) >> STRETCH)) if got else width * 32
            if jump:
                wide, jump = 1, 0  # Here the time begins that the search is for, and each job may match.
            took = max(self.clock() - began, 1e-6)
            width = max(1, min(wide, int(width * max(self.left, 0) / 2 / took)))
        return top

    async def ranges_after(self, top: int) -> int:
        """Return how many ranges below `top` have jobs that are probably newer than the filter wants; 0: unknown.

        They are one step. In growing steps, the search would pass the time that it is for, and then have to find where
        that time begins: some ten statements.
        """
        rows = await self.rows("dashboard/show_id_before", "dashboard/force_block_summaries")
        near = rows[0]["id"] if rows else None
        return 0 if near is None else max(0, ((top - 1) >> STRETCH) - (near >> STRETCH))

    async def rows(self, name: str, steer: str, **step: object) -> list[Row] | None:
        """Run a statement with its plan settings in the time left; None if that was too short."""
        left = round(self.left * 1000)
        try:
            if left > 0:
                return await self.database.rows(name, self.parameters | step, before=(steer, {"milliseconds": left}))
        except errors.QueryCanceled:
            pass
        self.found.is_late = True
        return None

    def take(self, rows: list[Row]) -> int:
        """Add the rows that are jobs; return how many.

        There is always one row, whose id may be null.
        """
        self.found.asked_at = rows[0]["asked_at"]
        jobs = [row for row in rows if row["id"] is not None]
        self.found.rows += jobs
        return len(jobs)
