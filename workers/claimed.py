"""A claimed job, as the claim's answer has it."""

from __future__ import annotations

from typing import NamedTuple


class Claimed(NamedTuple):
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
    """What few jobs have, as a JSON object: tenant, webhook, payload_bytes in base64."""
