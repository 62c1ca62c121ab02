"""Handlers that work in a job transaction, loaded by the workers under test."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from jobherd import Completed, Job, Nack, handler
from tests.support.gate import at_gate

if TYPE_CHECKING:
    import psycopg

_KEPT: list[Any] = []


def _note(connection: psycopg.Connection[Any], job: Job, note: str) -> None:
    connection.execute("INSERT INTO public.ledger (job, token, note) VALUES (%s, %s, %s)", [job.id, job.token, note])


@handler("bank:nothing")
def nothing(n: int = 0) -> None: ...


@handler("bank:declared", transactional=True, timeout="10m")
def declared(job: Job, how: str) -> object:  # one branch for each way to end
    connection = job.connection
    _note(connection, job, how)
    nothing.enqueue(n=1)
    match how:
        case "raises":
            raise ValueError("no")
        case "nack":
            return Nack("1h", "later")
        case "completed":
            return Completed({"paid": 7})
        case "unstorable":
            return object()
        case "commit":
            connection.commit()
        case "COMMIT":
            connection.execute("COMMIT")
            _note(connection, job, "after")
        case "COMMIT and raise":
            connection.execute("COMMIT")
            raise ValueError("no")
        case "COMMIT and no more":
            connection.execute("COMMIT")
        case "ROLLBACK":
            connection.execute("ROLLBACK")
            _note(connection, job, "after")
        case "swallows":
            try:
                connection.execute("SELECT 1/0")
            except Exception:
                return None
        case "part":
            try:
                with connection.transaction():
                    _note(connection, job, "undone")
                    connection.execute("SELECT 1/0")
            except Exception:
                return None
        case "closes":
            connection.close()
        case "late":
            connection.execute("INSERT INTO public.unique_in_the_end VALUES (1), (1)")
        case "leaves its mark":
            connection.execute("SET application_name = 'marked'")
            connection.execute("CREATE TEMP TABLE marks (n int)")
            connection.execute("SELECT pg_advisory_lock(4711)")
            connection.execute("LISTEN marks")
            connection.execute("DECLARE mark CURSOR WITH HOLD FOR SELECT 1")
            _KEPT.append(connection)
        case "looks for marks":
            assert _KEPT.pop().closed
            return connection.execute("SELECT current_setting('application_name'), to_regclass('marks')").fetchone()
        case _:
            return {"how": at_gate(how) if how.startswith("gate") else how}
    return None


@handler("bank:locks", timeout="10m", max_attempts=1)
def locks(job: Job, how: str) -> None:
    if how.startswith("part"):
        try:
            with job.transaction() as connection:
                connection.execute("SELECT pg_advisory_lock(4711)")
                if how == "part raises":
                    raise ValueError("no")
        except ValueError:
            pass
        at_gate(how)
        return
    with job.transaction() as connection:
        connection.execute("SELECT pg_advisory_lock(4711)")
        if how == "COMMIT":
            connection.execute("COMMIT")
        if how != "well":
            raise ValueError("no")


@handler("bank:repeats", transactional=True, max_attempts=2)
def repeats(job: Job) -> None:
    for _ in range(8):
        job.connection.execute("SELECT 1")


@handler("bank:arepeats", transactional=True, max_attempts=2)
async def arepeats(job: Job) -> None:
    connection: Any = job.connection
    for _ in range(8):
        await connection.execute("SELECT 1")


@handler("bank:sleeps", transactional=True, timeout="200ms", max_attempts=1)
def sleeps(job: Job) -> None:
    _note(job.connection, job, "slept")
    job.connection.execute("SELECT pg_sleep(60)")


@handler("bank:async", transactional=True, timeout="10m")
async def coroutine(job: Job, how: str) -> object:
    connection: Any = job.connection
    await connection.execute(
        "INSERT INTO public.ledger (job, token, note) VALUES (%s, %s, %s)", [job.id, job.token, how]
    )
    await nothing.aenqueue(n=2)
    if how == "raises":
        raise ValueError("no")
    if how == "sleeps":
        await connection.execute("SELECT pg_sleep(60)")
    if how == "enqueues":
        nothing.enqueue(n=3)
    return how


@handler("bank:part", timeout="10m", backoff="1h")
def part(job: Job, how: str = "") -> object:  # one branch for each way to end
    if how == "twice":
        try:
            with job.transaction() as connection:
                _note(connection, job, "first")
                raise KeyError("first")
        except KeyError:
            pass
    transaction = job.transaction()
    with transaction as connection:
        _note(connection, job, how)
        nothing.enqueue(n=4)
        transaction.result = {"how": how}
        if how == "raises":
            raise ValueError("no")
        if how == "nested":
            with job.transaction():
                pass
        if how.startswith("gate"):
            at_gate(how)
    match how:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "again":
            with job.transaction():
                pass
        case "goes on":
            return "unheard"
    return None


@handler("bank:apart", timeout="10m")
async def apart(job: Job, how: str) -> None:
    async with job.transaction() as connection:
        await connection.execute(
            "INSERT INTO public.ledger (job, token, note) VALUES (%s, %s, %s)", [job.id, job.token, how]
        )


@handler("bank:short")
def short(label: str = "") -> None:
    if label:
        at_gate(label)


@handler("bank:listens", transactional=True)
def listens(job: Job) -> None:
    """LISTEN, which must end with this job's transaction."""
    job.connection.execute("LISTEN bank")


@handler("bank:hears", transactional=True)
def hears(job: Job) -> list[str]:
    """Return the payloads of the notifications that the session receives."""
    heard: list[str] = []
    job.connection.add_notify_handler(lambda note: heard.append(note.payload))
    job.connection.execute("SELECT 1")
    return heard
