"""A claimed job, as the answer to the claim returns it, and how to read its rare attributes."""

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
    """Attributes that few jobs have: the column `extras` as a JSON object, by the names of its type."""

    def traceparent(self) -> str | None:
        """Return the trace that the job belongs to, or None."""
        found: str | None = None if self.extras is None else orjson.loads(self.extras)["traceparent"]
        return found


def write_bytes(data: bytes | None) -> str | None:
    """Return bytes as they are in the JSON object of a job's extras: as PostgreSQL writes them."""
    return None if data is None else r"\x" + data.hex()


def read_bytes(text: str | None) -> bytes | None:
    r"""Return the bytes that PostgreSQL wrote as text.

    >>> read_bytes(r"\x00ff")
    b'\x00\xff'
    """
    return None if text is None else bytes.fromhex(text[2:])
