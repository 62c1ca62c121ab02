"""Statements to the database as values: the name, its parameters, and how to read the result.

No connection is used here. So the synchronous client, the asynchronous client and the caller's own
connection share all of it and differ only in how they wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import orjson

from jobherd.handlers._enqueue.options import check_id
from jobherd.handlers._enqueue.rule import delay_of, fields_of, is_keyed, rule_of
from jobherd.handlers._values.job_id import DuplicateJob, known_id
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._enqueue.options import Options

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]

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


def enqueue_after(kind: str, texts: list[str], options: Options) -> Statement[list[int]]:
    """Return the statement that enqueues jobs of one kind behind the jobs that must end first.

    The answer is their ids, in order.
    """
    return Statement("enqueue/enqueue_after", {"kind": kind, "payloads": texts, **options.parameters()}, _read_ids)


def enqueue_unique(kind: str, texts: list[str], options: Options, keys: list[str] | None) -> Statement[list[int]]:
    """Return the statement that enqueues unique jobs of one kind.

    keys: a text for each job instead of its payload. The answer is their ids, in order, each a
    JobId. Reading it raises DuplicateJob if the jobs must all be new and are not.
    """
    rule = rule_of(options)
    names, paths = fields_of(options) if keys is None else (None, None)
    if keys is not None:
        rule.pop("key", None)  # it would be stored for people to read
    parameters = {"kind": kind, "payloads": texts, "rule": orjson.dumps(rule).decode(), "keys": keys}
    parameters = options.parameters() | parameters | {"names": names, "paths": paths, "delay": delay_of(options)}
    if is_keyed(options):
        return Statement("enqueue/enqueue_keyed", parameters, _read_unique)
    read = _read_all_new if rule["conflict"] == "raise" else _read_unique
    return Statement("enqueue/enqueue_unique", parameters, read)


def start_flow(name: str, nodes: str, options: str) -> Statement[int]:
    """Return the statement that enqueues a flow; the answer is its id."""
    return Statement(
        "enqueue/start_flow", {"name": name, "nodes": nodes, "options": options}, lambda rows, _: int(rows[0][0])
    )


def extend_flow(flow_id: int, nodes: str) -> Statement[int]:
    """Return the statement that adds nodes to a flow; the answer is the number of jobs."""
    return Statement("enqueue/extend_flow", {"flow": flow_id, "nodes": nodes}, lambda rows, _: int(rows[0][0]))


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

    The answer is the result, or None if the job does not exist.
    """
    return Statement("control/cancel_job", {"id": check_id(job_id), "actor": actor, "reason": reason}, _read_answer)


def send_signal(topic: str, payload: object) -> Statement[int]:
    """Return the statement that sends a signal to a topic. The answer is its id."""
    if not isinstance(topic, str) or not 0 < len(topic) <= 300:
        message = f"a topic must be a text of 1 to 300 characters, not {topic!r:.60}"
        raise ValueError(message)
    return Statement("control/send_signal", {"topic": topic, "payload": check_payload(payload)}, _read_id)


def send_signal_to(job_id: int, name: str, payload: object) -> Statement[int | None]:
    """Return the statement that sends a signal to one job. The answer is its id, or None if the job does not exist."""
    given = {"id": check_id(job_id), "name": name, "payload": check_payload(payload)}
    return Statement("control/send_job_signal", given, _read_id)


def retry_job(job_id: int, actor: str | None = None, reason: str | None = None) -> Statement[str | None]:
    """Return the statement that runs one job again, with an audit entry.

    The answer is the job's state, or None if the job does not exist.
    """
    return Statement("control/retry_job", {"id": check_id(job_id), "actor": actor, "reason": reason}, _read_answer)


def cancel_flow(flow_id: int, actor: str | None = None, reason: str | None = None) -> Statement[str | None]:
    """Return the statement that cancels all jobs of a flow. The answer is None if the flow does not exist."""
    return Statement(
        "control/cancel_flow",
        {"id": check_id(flow_id, field="a flow's id"), "actor": actor, "reason": reason},
        _read_id,
    )


def retry_flow(
    flow_id: int, from_node: str | None = None, actor: str | None = None, reason: str | None = None
) -> Statement[int | None]:
    """Return the statement that runs a flow again.

    The answer is the number of jobs, or None if the flow does not exist.
    """
    given = {"id": check_id(flow_id, field="a flow's id"), "node": from_node, "actor": actor, "reason": reason}
    return Statement("control/retry_flow", given, _read_id)


def seal_flow(flow_id: int) -> Statement[str | None]:
    """Return the statement that seals a flow. The answer is None if the flow does not exist."""
    return Statement("control/seal_flow", {"id": check_id(flow_id, field="a flow's id")}, _read_id)


def _read_ids(rows: list[Row], _: tuple[str, ...]) -> list[int]:
    return [row[0] for row in rows]


def _read_unique(rows: list[Row], _: tuple[str, ...]) -> list[int]:
    return [known_id(row[0], new=row[1]) for row in rows]


def _read_all_new(rows: list[Row], names: tuple[str, ...]) -> list[int]:
    if rows and not rows[0][1]:
        raise DuplicateJob(rows[0][0])
    return _read_unique(rows, names)


def _read_reserved(rows: list[Row], _: tuple[str, ...]) -> Reserved | None:
    return Reserved(*rows[0]) if rows else None


def _read_nothing(_: list[Row], __: tuple[str, ...]) -> None:
    return None


def _read_id(rows: list[Row], _: tuple[str, ...]) -> Any:
    return rows[0][0]


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
