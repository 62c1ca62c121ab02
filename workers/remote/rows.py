"""Turns a task of the gateway into the row that a claim in the database would return."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import orjson

from jobherd.workers.job.row import JobRow

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
    found = {
        "tenant": task.tenant or None,
        "webhook": task.webhook or None,
        "payload_bytes": base64.b64encode(task.data).decode() if task.data else None,
        "parent_id": task.parent_id or None,
        "traceparent": task.traceparent or None,
    }
    return orjson.dumps(found).decode() if any(found.values()) else None
