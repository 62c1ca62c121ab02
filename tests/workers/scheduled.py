"""A handler with a schedule, loaded by the workers under test."""

from __future__ import annotations

from jobherd import Job, Schedule, handler


@handler("tick:tock", schedules=[Schedule("clock", every="1s", payload={"at": "{scheduled_for}", "of": "{schedule}"})])
def tock(job: Job, at: str, of: str) -> list[object]:
    assert job.scheduled_for is not None
    return [job.schedule, of, job.scheduled_for.isoformat() == at, job.missed]
