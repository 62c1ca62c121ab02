"""Turns the parameters of a settlement into Results of the gateway's protocol, and acknowledges them.

The gateway decides again by its own rules (`workers/gateway/results.py`). What this host has
decided with rules that the gateway does not know (exceptions, functions for the back-off) is
therefore sent as its decision: a permanent failure as poison, a retry with its delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from jobherd.handlers._remote import messages as m
from jobherd.handlers._remote.outcomes import NOT_STARTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobherd.handlers._remote.events import Ref

SOON: Final = 0.001
"""Seconds for a retry without a delay: 0 would mean the back-off of the kind."""
_COLUMNS: Final = (
    "outcomes", "delays", "results", "codes", "errors", "tracebacks", "ran", "usages", "progresses", "post_mortems",
    "crashes", "logs",
)  # fmt: skip


def results_of(settlement: Mapping[str, Any]) -> list[tuple[m.Result, m.Progress | None]]:
    """Return the Result of each job of a settlement, and the progress that it has reported last.

    settlement: the parameters of settle_jobs.sql.
    """
    ids = settlement["ids"]
    columns = [settlement[name] or [None] * len(ids) for name in _COLUMNS]
    return [
        (
            _result(settlement["token"], job, one),
            None if one.progress is None else progress_of(settlement["token"], job, one.progress),
        )
        for job, one in zip(ids, map(_Settled._make, zip(*columns, strict=True)), strict=True)
    ]


def released(job: int, token: int) -> m.Result:
    """Return the Result of a task that was not started."""
    return m.Result(task_id=job, claim=token, ran_seconds=NOT_STARTED, abandon=m.Abandon())


def suspected(job: int, token: int, error: str) -> m.Result:
    """Return the Result of a task that was not started and may have killed its process."""
    failed = m.Failed(error=error, crash=m.Crash())
    return m.Result(task_id=job, claim=token, ran_seconds=NOT_STARTED, failed=failed)


def progress_of(token: int, job: int, text: str) -> m.Progress:
    """Return the message that reports a progress. text: as a status board has it."""
    record = orjson.loads(text)
    data = orjson.dumps(record["data"]) if "data" in record else b""
    ref = m.TaskRef(task_id=job, claim=token)
    return m.Progress(task=ref, fraction=record["fraction"], note=record.get("note", ""), data=data)


def acknowledgement(number: int, lost: Iterable[Ref]) -> m.WorkResponse:
    """Return the message that answers a ResultBatch. lost: the tasks whose results were not recorded."""
    refusals = [
        m.Refusal(reason=m.Refusal.REASON_LOST, task=m.TaskRef(task_id=ref.task, claim=ref.claim)) for ref in lost
    ]
    return m.WorkResponse(result_ack=m.ResultAck(up_to=number, refusals=refusals))


class _Settled(NamedTuple):
    """One job of a settlement, in the order of _COLUMNS."""

    label: str | None
    delay: float | None
    value: str | None
    code: str | None
    error: str | None
    trace: str | None
    ran: float | None
    usage: str | None
    progress: str | None
    post_mortem: str | None
    crashed: int | None
    log: str | None


def _result(token: int, job: int, one: _Settled) -> m.Result:
    result = m.Result(
        task_id=job,
        claim=token,
        ran_seconds=NOT_STARTED if one.ran is None else one.ran,
        log=(one.log or "").encode(),
        usage=(one.usage or "").encode(),
    )
    failed = m.Failed(error=one.error or "", code=one.code or "", traceback=one.trace or "")
    match one.label:
        case _ if one.crashed:
            failed.crash.CopyFrom(m.Crash(post_mortem=(one.post_mortem or "").encode()))
            result.failed.CopyFrom(failed)
        case None | "ok":
            result.completed.result = (one.value or "").encode()
        case "retry":
            failed.retry_after_seconds = max(one.delay or 0.0, SOON)
            result.failed.CopyFrom(failed)
        case "snoozed":
            result.snooze.delay_seconds = one.delay or 0.0
        case "abandoned":
            result.abandon.SetInParent()
        case "cancelled":
            result.cancelled.SetInParent()
        case "expired":
            result.expired.SetInParent()
        case _:
            failed.poison = True
            result.failed.CopyFrom(failed)
    return result
