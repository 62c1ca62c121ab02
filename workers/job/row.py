"""A claimed job, as the claim's answer has it."""

from __future__ import annotations

from typing import NamedTuple

import orjson


class JobRow(NamedTuple):
    """A row of claim_jobs.sql."""

    token: int
    id: int  # no number: the row only says that others hold the first rows
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
    """What few jobs have, as a JSON object: tenant, webhook, payload_bytes in base64, set_off_by, traceparent."""

    def traceparent(self) -> str | None:
        """Return the trace that it belongs to, or None."""
        found: str | None = None if self.extras is None else orjson.loads(self.extras)["traceparent"]
        return found
