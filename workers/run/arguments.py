"""Turns a job's row into the arguments of its handler: decodes, decrypts and binds the payload.

Converters and `__init__` of payload classes are user code. So call `bind_arguments` only while
interrupts are open.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._run.job import EXTRAS, Job
from jobherd.handlers._values.encryption import open_bytes, open_payload
from jobherd.handlers._values.payload import decode_payload
from jobherd.workers.job.row import read_bytes

if TYPE_CHECKING:
    from jobherd.workers.job.row import JobRow
    from jobherd.workers.run.job_kinds import JobKind

NO_JOB: Final = Job(id=0, kind="")
"""Placeholder for handlers that do not take the Job. Shared, so nothing writes to it."""


def bind_arguments(row: JobRow, kind: JobKind, job: Job) -> dict[str, Any]:
    """Return the handler's arguments, and give the job its payload. Raises what decoding raises."""
    handler = kind.handler
    payload = decode_payload(row.payload)
    if kind.encrypts:
        payload = open_payload(payload, row.kind, only=kind.encrypts_only)
    if job is not NO_JOB:
        job.payload = payload
    arguments = handler.binding.bind(payload)
    if row.extras is not None or kind.takes_bytes:
        given = add_extras(row.extras, job)
        if kind.encrypts:
            given.payload_bytes = open_bytes(given.payload_bytes, row.kind)
        handler.signature.take_bytes(arguments, given.payload_bytes)
    return arguments


def add_extras(extras: str | None, job: Job) -> Job:
    """Give a job its rare attributes and return it.

    The shared placeholder is replaced by a new object.
    """
    if extras is None:
        return job
    own = orjson.loads(extras)
    job = Job(id=0, kind="") if job is NO_JOB else job
    for column, name in EXTRAS.items():
        setattr(job, name, own[column])
    job.payload_bytes = read_bytes(own["payload_bytes"])
    job.flow = own.get("flow") or None  # 0: a job waits for this one, which is no member of a flow
    if instant := own.get("schedule"):
        job.schedule, job.missed = instant["name"], instant["missed"]
        job.scheduled_for = datetime.fromisoformat(instant["at"]).astimezone(UTC)
    return job
