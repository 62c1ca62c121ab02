"""Statements to the database as values: the name, its parameters, and how to read the result.

No connection is used here. So the synchronous client, the asynchronous client and the caller's own
connection share all of it and differ only in how they wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import orjson

from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import check_queue, check_tenant, check_traceparent, check_webhook, check_whole
from jobherd.handlers._values.json_form import type_name
from jobherd.handlers._values.payload import PayloadError, check_bytes, decode_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]

OVER: Final = frozenset({"completed", "failed", "cancelled", "expired"})
"""The final states: a job does not leave them on its own."""

FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Range of timestamps that the tables accept. Their own error message for others would show the
job."""

_JSON_COLUMNS: Final = frozenset({"payload", "result", "progress", "history", "usage", "post_mortem"})


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """One statement to send: `sql.load(name)` with `parameters`.

    `read` converts the rows and column names to the answer.

    lines: the data of a COPY, which returns no rows.
    """

    name: str
    parameters: dict[str, Any]
    read: Callable[[list[Row], tuple[str, ...]], T]
    lines: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options of an enqueue. None: the kind's value."""

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    expires_at: datetime | None = None
    cost: dict[str, float] | None = None
    tenant: str | None = None
    webhook: str | None = None
    payload_bytes: bytes | None = None
    parent_id: int | None = None
    traceparent: str | None = None

    @property
    def has_extras(self) -> bool:
        """Whether an option that few jobs have is set: COPY does not support these."""
        return any(
            value is not None
            for value in (self.tenant, self.webhook, self.payload_bytes, self.parent_id, self.traceparent)
        )

    def parameters(self) -> dict[str, Any]:
        """Return the options by name, as the statements take them."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_options(  # one parameter for each option
    *,
    queue: str | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    expires_at: datetime | None = None,
    cost: Mapping[str, float] | None = None,
    tenant: str | None = None,
    webhook: str | None = None,
    payload_bytes: bytes | None = None,
    parent_id: int | None = None,
    traceparent: str | None = None,
) -> Options:
    """Return the checked options, durations in seconds.

    Raises ValueError or TypeError naming the field and the fix.
    """
    if delay is not None and run_at is not None:
        message = "delay and run_at exclude each other: give one of them"
        raise ValueError(message)
    return Options(
        queue=None if queue is None else check_queue(queue),
        priority=None if priority is None else check_whole(priority, field="priority"),
        delay=None if delay is None else at_least_zero(delay, field="delay"),
        run_at=None if run_at is None else _moment(run_at, field="run_at"),
        max_attempts=None if max_attempts is None else check_whole(max_attempts, field="max_attempts", least=1),
        timeout=None if timeout is None else positive(timeout, field="timeout"),
        expires_at=None if expires_at is None else _moment(expires_at, field="expires_at"),
        cost=None if cost is None else check_amounts(cost, field="cost"),
        tenant=None if tenant is None else check_tenant(tenant),
        webhook=None if webhook is None else check_webhook(webhook),
        payload_bytes=None if payload_bytes is None else check_bytes(payload_bytes),
        parent_id=None if parent_id is None else check_id(parent_id),
        traceparent=None if traceparent is None else check_traceparent(traceparent),
    )


@dataclass(frozen=True, slots=True)
class Reserved:
    """Ids reserved for jobs, and their resolved options: all that a COPY cannot compute itself."""

    ids: list[int]
    due: bool
    run_at: str
    queue: str
    priority: int


def enqueue_jobs(kind: str, texts: list[str], options: Options) -> Statement[list[int]]:
    """Return the statement that enqueues jobs of one kind.

    `texts`: checked payloads; the answer is their ids, in order.
    """
    return Statement("enqueue/enqueue_jobs", {"kind": kind, "payloads": texts, **options.parameters()}, _read_ids)


def store_costs(ids: list[int], costs: list[dict[str, float]]) -> Statement[None]:
    """Return the statement that stores each job's cost, in the enqueueing transaction."""
    return Statement(
        "enqueue/store_costs", {"ids": ids, "costs": [orjson.dumps(cost).decode() for cost in costs]}, _read_nothing
    )


def reserve_jobs(kind: str, count: int, options: Options) -> Statement[Reserved | None]:
    """Return the statement that reserves ids for `copy_jobs`.

    The answer is None if the role must not choose ids, or if COPY is not possible.
    """
    return Statement("enqueue/reserve_jobs", {"kind": kind, "count": count, **options.parameters()}, _read_reserved)


def copy_jobs(kind: str, texts: list[str], options: Options, reserved: Reserved) -> Statement[None]:
    """Return the statement that enqueues jobs by COPY under their reserved ids."""
    expires_at = None if options.expires_at is None else options.expires_at.astimezone(UTC).isoformat()
    common = (
        reserved.run_at,
        expires_at,
        options.timeout,
        reserved.priority,
        options.max_attempts,
        reserved.queue,
        kind,
    )
    line = "%d\t" + "\t".join("" if value is None else str(value) for value in common) + "\t%s\n"
    # A checked document contains no tab and no newline, and only a document contains a backslash.
    lines = "".join(map(line.__mod__, zip(reserved.ids, texts, strict=True))).replace("\\", "\\\\")
    return Statement("enqueue/copy_ready" if reserved.due else "enqueue/copy_scheduled", {}, _read_nothing, lines)


def show_job(job_id: int) -> Statement[dict[str, Any] | None]:
    """Return the statement that reads one job; the answer is its row of the view, or None."""
    return Statement("observe/show_job", {"id": check_id(job_id)}, _read_job)


def show_jobs(job_ids: list[int]) -> Statement[dict[int, dict[str, Any]]]:
    """Return the statement that reads jobs.

    The answer is the rows of the view by id, of the jobs that exist.
    """
    return Statement("observe/show_jobs", {"ids": job_ids}, _read_jobs)


def listen_finished() -> Statement[None]:
    """Return the statement that listens for finished jobs."""
    return Statement("wake/listen_finished", {}, _read_nothing)


def disable_jit(promised: int) -> Statement[int]:
    """Return the statement that disables compilation and returns the backend's process id.

    If that is not the process id that the connection was given, a pooler is in between; then the
    setting lasts only for the statement. Compiling the query of a job took 0.3 s, and running it 1
    ms.
    """
    return Statement("session/disable_jit", {"promised": promised}, lambda rows, _names: int(rows[0][0]))


def announce_wait(job_ids: list[int]) -> Statement[None]:
    """Return the statement that announces a wait for these jobs, until the session ends."""
    return Statement("wake/announce_wait", {"ids": job_ids}, _read_nothing)


def wait_for_settlements(job_ids: list[int]) -> Statement[None]:
    """Return the statement that waits until running settlements of these jobs are committed."""
    return Statement("wake/wait_for_settlements", {"ids": job_ids}, _read_nothing)


def cancel_job(job_id: int, actor: str | None = None, reason: str | None = None) -> Statement[str | None]:
    """Return the statement that cancels one job, with an audit entry.

    The answer is the result, or None if there is no such job.
    """
    return Statement("control/cancel_job", {"id": check_id(job_id), "actor": actor, "reason": reason}, _read_answer)


def retry_job(job_id: int, actor: str | None = None, reason: str | None = None) -> Statement[str | None]:
    """Return the statement that runs one job again, with an audit entry.

    The answer is the job's state, or None if there is no such job.
    """
    return Statement("control/retry_job", {"id": check_id(job_id), "actor": actor, "reason": reason}, _read_answer)


def _moment(value: object, *, field: str) -> datetime:
    if not isinstance(value, datetime):
        message = f"{field} must be a datetime with a time zone, not a {type(value).__name__}"
        raise TypeError(message)
    if value.tzinfo is None or value.utcoffset() is None:
        message = f"{field} has no time zone: use datetime.now(UTC) + ..., or value.astimezone() for local time"
        raise ValueError(message)
    if not FIRST < value < LAST:
        message = f"{field} must lie between the years 1900 and 9000 in UTC, not at {value.isoformat()}"
        raise ValueError(message)
    return value


def check_id(value: object) -> int:
    """Return a valid job id. Raises TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"a job's id is a whole number, not a {type(value).__name__}"
        raise TypeError(message)
    if not -(2**63) <= value < 2**63:
        message = "a job's id fits into 64 bits; this one does not"
        raise ValueError(message)
    return value


def _read_ids(rows: list[Row], _: tuple[str, ...]) -> list[int]:
    return [row[0] for row in rows]


def _read_reserved(rows: list[Row], _: tuple[str, ...]) -> Reserved | None:
    return Reserved(*rows[0]) if rows else None


def _read_nothing(_: list[Row], __: tuple[str, ...]) -> None:
    return None


def _read_answer(rows: list[Row], _: tuple[str, ...]) -> str | None:
    return rows[0][0] if rows else None


def _read_job(rows: list[Row], names: tuple[str, ...]) -> dict[str, Any] | None:
    if not rows:
        return None
    return {
        name: _readable(value) if name in _JSON_COLUMNS else value for name, value in zip(names, rows[0], strict=True)
    }


def _read_jobs(rows: list[Row], names: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    found = (_read_job([row], names) for row in rows)
    return {
        row["id"]: {name: value for name, value in row.items() if name != "asked_at"}
        for row in found
        if row is not None
    }


def _readable(value: object) -> object:
    """Return the document in a JSON column, or its text if Python cannot load it.

    Reading a bad job must work.
    """
    if not isinstance(value, str | bytes):
        return value
    try:
        return decode_payload(value)
    except PayloadError:
        return value


def check_target(value: object, field: str, wanted: str, *kinds: type) -> None:
    """Raise TypeError for an invalid connection or client, which would fail later, or be ignored and the job enqueued elsewhere."""
    if value is not None and not isinstance(value, kinds):
        message = f"{field} must be {wanted}, not a {type_name(value)}"
        raise TypeError(message)
