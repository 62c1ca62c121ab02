"""Turns a task of the gateway into the row that a claim in the database would return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from jobherd.handlers._run.job import EXTRAS
from jobherd.workers.job.row import JobRow, write_bytes

if TYPE_CHECKING:
    from jobherd.handlers._remote.messages import Task


def row_of(task: Task) -> JobRow:
    """Return a task as a row of claim_jobs.sql."""
    return JobRow(
        token=task.claim,
        id=task.id,
        kind=task.kind,
        queue=task.queue,
        payload=task.payload.decode(),
        attempts=task.attempt,
        max_attempts=task.max_attempts or None,
        crashes=task.crashes,
        priority=task.priority,
        timeout=task.timeout_seconds or None,
        created_at=task.created_at_micros / 1e6,
        run_at=task.run_at_micros / 1e6,
        good_for=task.expires_in_seconds or None,
        waited=task.waited_seconds,
        more=False,  # The gateway knows which workers wait, and sends them jobs without being asked twice.
        extras=_extras(task),
    )


def _extras(task: Task) -> str | None:
    found: dict[str, object] = {name: getattr(task, name) or None for name in EXTRAS}
    found["payload_bytes"] = write_bytes(task.data or None)
    return orjson.dumps(found).decode() if any(found.values()) else None
