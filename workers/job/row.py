"""A claimed job, as the answer to the claim returns it."""

from __future__ import annotations

from typing import NamedTuple

import orjson


class JobRow(NamedTuple):
    """A row of claim_jobs.sql."""

    token: int
    id: int  # None: not a job. Other sessions have locked the first rows, see claim_jobs.sql
    kind: str
    queue: str
    payload: str
    attempts: int
    max_attempts: int | None
    crashes: int
    priority: int
    timeout: float | None
    created_at: float
    run_at: float
    good_for: float | None
    waited: float
    more: bool
    extras: str | None = None
    """Rare attributes, as a JSON object: tenant, webhook, payload_bytes in base64, parent_id,
    traceparent, schedule.
    """

    def traceparent(self) -> str | None:
        """Return the trace that the job belongs to, or None."""
        found: str | None = None if self.extras is None else orjson.loads(self.extras)["traceparent"]
        return found
