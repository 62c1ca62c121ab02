"""The row of a job as a `TaskResult` of Django."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.utils import timezone

from jobherd.django.versions import base

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS: Final = {
    "running": "RUNNING",
    "completed": "SUCCESSFUL",
    "failed": "FAILED",
    "cancelled": "FAILED",
    "expired": "FAILED",
}
"""Django's status of each state; the others are READY."""
CANCELLED: Final = "asyncio.CancelledError"
"""The class of an error without an exception: Django requires one that can be imported."""


def new_result(task: Any, job_id: int, arguments: Mapping[str, Any], *, alias: str, **fields: Any) -> Any:
    """Return the result of a task that has just been enqueued. fields: others of a `TaskResult`."""
    given: dict[str, Any] = {
        "task": task,
        "id": str(job_id),
        "status": base.TaskResultStatus.READY,
        "enqueued_at": timezone.now(),
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "args": arguments["args"],
        "kwargs": arguments["kwargs"],
        "backend": alias,
        "errors": [],
        "worker_ids": [],
    }
    return base.TaskResult(**given | fields)


def result_of(row: Mapping[str, Any], task: Any, *, alias: str) -> Any:
    """Return the result of a task from the row of its job in `jobherd.jobs`."""
    attempts = [entry for entry in row["history"] if "started_at" in entry]
    started = [datetime.fromisoformat(entry["started_at"]) for entry in attempts]
    workers = [entry.get("ran_on", "") for entry in attempts]
    if row["state"] == "running":
        started.append(row["started_at"])
        workers.append(row["ran_on"] or "")
    errors = [
        base.TaskError(
            exception_class_path=_importable(entry.get("error_class")),
            traceback=entry.get("traceback") or entry["error"],
        )
        for entry in row["history"]
        if "error" in entry
    ]
    result = new_result(
        task,
        row["id"],
        row["payload"],
        alias=alias,
        status=base.TaskResultStatus(STATUS.get(row["state"], "READY")),
        enqueued_at=_moment(row["created_at"]),
        started_at=_moment(started[0]) if started else None,
        last_attempted_at=_moment(started[-1]) if started else None,
        finished_at=_moment(row["finished_at"]),
        errors=errors,
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", row["result"])
    return result


def _importable(name: str | None) -> str:
    if name is None:
        return CANCELLED
    return name if "." in name else f"builtins.{name}"


def _moment(value: datetime | None) -> datetime | None:
    return value if value is None or settings.USE_TZ else timezone.make_naive(value)
