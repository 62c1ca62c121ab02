"""A record of an application's table, as a job of a queue, and its outcome as parameters of a statement.

Values only: nothing here uses a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from jobherd.handlers._values.outcome import UNHANDLED_ERROR, Outcome
from jobherd.workers.job.row import JobRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.job.finished import Finished

STATES: Final = {"completed": "completed", "failed": "failed", "cancelled": "canceled"}
"""The state of a record for each final state of a job. Every other outcome returns the record to the
queue."""


class Taken(NamedTuple):
    """A row of dequeue_record.sql."""

    record: int
    token: int
    failures: int
    resets: int
    created_at: float
    run_at: float
    now: float


def settle_parameters(
    outcome: Outcome, *, record: int, token: int, logs: Sequence[str] | None = None
) -> dict[str, object]:
    """Return the parameters of settle_record.sql for an outcome.

    >>> settle_parameters(Outcome("retry", delay=5.0, error="no answer"), record=7, token=1)["state"]
    'errored'
    """
    again = outcome.state == "scheduled"
    return {
        "record": record,
        "token": token,
        "state": "errored" if again and outcome.failed else STATES.get(outcome.state, "queued"),
        "message": None if outcome.label == "ok" else outcome.error,
        "delay": outcome.delay if again else None,
        "failures": int(outcome.failed),
        "logs": logs or None,
    }


def log_entries(finished: Finished, kind: str, *, began: float) -> list[str]:
    """Return the entries of the execution log as JSON.

    These are the entries of `job.log(key, ...)`, and one for everything else that the attempt
    printed and logged.
    began: when the attempt began, in seconds since 1970 by the database's clock.
    """
    if finished.log is None or finished.ran is None:
        return []
    document = orjson.loads(finished.log)
    entries = list(document.get("entries", ()))
    if document["output"].strip():
        code = int(finished.outcome.label != "ok")
        entries.append(
            {"key": kind, "at": began, "exit_code": code, "duration": round(finished.ran, 6), "out": document["output"]}
        )
    return [orjson.dumps(entry).decode() for entry in entries]


def as_job(table: TableHandler, taken: Taken) -> JobRow:
    """Return the record as a job of a queue, so that one executor and one stop sequence serve both."""
    waited = taken.now - taken.run_at
    return JobRow(
        taken.token, taken.record, table.kind, "", "null", taken.failures + 1, None, taken.resets, 0, None,
        taken.created_at, taken.run_at, None, waited if 0 < waited < float("inf") else 0.0, False,
    )  # fmt: skip


def failure(table: TableHandler, taken: Taken, error: str) -> Outcome:
    """Return the outcome of a record whose attempt succeeded and could not be kept."""
    if taken.failures < table.store.max_retries:
        return Outcome("retry", delay=table.store.retry_after, error=error, code=UNHANDLED_ERROR)
    return Outcome("failed", error=error, code=UNHANDLED_ERROR)
