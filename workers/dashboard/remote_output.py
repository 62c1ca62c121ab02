"""Reads the live output of a job that runs on another host.

The job's supervisor stores the output in the database each second, for as long as it is asked to.
Nothing waits for it: output that is not stored yet is returned by the next query. Must not read
status boards; `workers/inspect/live_output.py` does that on the host where the job runs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from jobherd.workers.dashboard.database import Database

WATCH: Final = 30.0
"""Seconds of live output that one request asks for."""
RENEW: Final = 10.0
"""Seconds before the end of that time at which the output is requested again."""


async def stored_output(at: Database, job: int, token: int) -> str | None:
    """Return the latest lines that a job has printed or logged, as its supervisor stored them.

    token: of the job's claim. None if the supervisor has stored nothing.
    """
    row = await at.row("dashboard/show_output", {"id": job, "token": token})
    if row is None:
        return None
    if row["left"] is None or row["left"] < RENEW:
        with suppress(psycopg.Error):  # a read-only role, or a supervisor that has exited meanwhile
            await at.act("dashboard/request_output", {"supervisor": row["supervisor"], "id": job, "seconds": WATCH})
    said: str | None = row["said"]
    return said
