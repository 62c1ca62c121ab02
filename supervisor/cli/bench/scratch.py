"""Creates the scratch schema of `bench` and drops it at the end, with one that an earlier run left."""

from __future__ import annotations

import secrets
import select
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

import psycopg
from psycopg import errors

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.database import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


GLANCE: Final = 0.05
PREFIX: Final = "jobherd_bench_"
AHEAD: Final = 32
"""Days of partitions, as many as the maintenance process will require."""
CANCEL: Final = 5.0
"""Seconds that the server has to accept a cancel request."""


class _Interrupted(BaseException):
    """The user wants the measurement to end.

    This is not a KeyboardInterrupt: psycopg would cancel the statement once and then wait for it. A
    cancel request that arrives before its statement has begun cancels nothing.
    """


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end a measurement, so that its schema is dropped."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except _Interrupted:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Interrupted


def end_statement(connection: psycopg.Connection[object]) -> None:
    """End the interrupted statement: cancel it repeatedly until it has ended.

    Raises psycopg.Error if the session is lost.
    """
    ours = connection.pgconn
    while ours.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
        connection.cancel_safe(timeout=CANCEL)
        select.select([ours.socket], [], [], GLANCE)
        ours.flush()
        ours.consume_input()
        while not ours.is_busy() and ours.get_result() is not None:
            pass


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block signals: a second Ctrl-C during cleanup would leave the rest behind."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def scratch_schema(connection: psycopg.Connection[object]) -> Iterator[Session]:
    """Yield a session on a new schema with a unique name.

    First drop the schemas of killed measurements; drop the new schema at the end.
    """
    at = Session(connection, PREFIX + secrets.token_hex(6))
    at.row("bench/lock_scratch", {"name": at.schema})
    try:
        _drop_left_behind(at)
        migrate(connection, schema=at.schema)
        # Otherwise the maintenance process does this during the first measured jobs, and blocks
        # settlements.
        at.row("maintenance/keep_partitions", {"ahead": AHEAD, "most": None})
        yield at
    finally:
        with undisturbed():
            _drop(at)


def _drop(at: Session) -> None:
    """Drop the schema, whatever the session was doing when it was interrupted."""
    try:
        end_statement(at.connection)
        at.connection.rollback()
        at.connection.execute(sql.load("bench/drop_scratch", at.schema).encode())
    except psycopg.Error as problem:
        # In a read-only database the schema exists only if the database accepted writes at first.
        if not isinstance(problem, errors.ReadOnlySqlTransaction) or at.schema in {
            row["name"] for row in at.rows("bench/list_scratches")
        }:
            console.complain(
                f"the schema {at.schema} could not be dropped; the next `jobherd bench` on this database drops it"
            )


def _drop_left_behind(at: Session) -> None:
    for row in at.rows("bench/list_scratches"):
        if row["name"] != at.schema and at.row("bench/lock_scratch", {"name": row["name"]})["locked"]:
            _drop(Session(at.connection, row["name"]))
            console.complain(f"dropped the schema {row['name']}, which a killed benchmark had left")
