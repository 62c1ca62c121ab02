"""What a running job of another host says: its supervisor writes it down each second, for as long as it is asked to.

Nothing is waited for: what is not written yet is there at the next look. It reads no board; `workers/inspect/live_output.py` does, where the job runs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

if TYPE_CHECKING:
    from jobherd.workers.page.database import Database

WATCH: Final = 30.0
"""Seconds for which it is asked for at a time."""
RENEW: Final = 10.0
"""Seconds before the end of that at which it is asked for again."""


async def said_elsewhere(at: Database, job: int, token: int) -> str | None:
    """Return the latest lines that a job has printed or logged, by the supervisor that runs it; None if that has not said so. token: of its claim."""
    row = await at.row("page/show_said", {"id": job, "token": token})
    if row is None:
        return None
    if row["left"] is None or row["left"] < RENEW:
        with suppress(psycopg.Error):  # a role that may only look, or a supervisor that has left meanwhile
            await at.act("page/ask_said", {"supervisor": row["supervisor"], "id": job, "seconds": WATCH})
    said: str | None = row["said"]
    return said
