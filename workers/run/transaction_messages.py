"""Checks whether a job's transaction may begin and commit. The errors say what the handler's author can do.

It changes no state and sends no statement.
"""

from __future__ import annotations

import logging
from typing import Final

from psycopg.pq import TransactionStatus

from jobherd.handlers._values.outcome import SUSPENSION_SWALLOWED, Outcome
from jobherd.workers.inspect.phrases import duration

_log = logging.getLogger("jobherd.transaction")

NO_TRANSACTION: Final = (
    "the job is in no transaction: declare the handler with transactional=True, or use `with job.transaction():`"
)
ENDED_BY_HANDLER: Final = (
    "the handler has committed or rolled back its job's transaction itself: what it wrote before may be "
    "committed although the job failed. Let Jobherd end the transaction; to undo a part of it use "
    "`with connection.transaction():`"
)


SWALLOWED: Final = Outcome(
    "failed",
    code=SUSPENSION_SWALLOWED,
    error="the handler has swallowed JobSuspended, by which `job.sleep` ends an attempt: let it pass, catch Exception "
    "and not BaseException, and have no `return` in `finally`",
)


def check_begin(*, forked: bool, active: bool, committed: bool, of_table: bool, has_database: bool) -> None:
    """Raise RuntimeError with the reason if the running job cannot begin a transaction.

    forked: this process is a copy that the handler has forked. of_table: the job is a record of an
    application's own table.
    """
    message = ""
    if not has_database:
        message = "`jobherd work` has no database, so its jobs have no transactions: run this kind with `jobherd run`"
    elif forked:
        message = "a process that a handler has forked cannot use its job's transaction: the job is its parent's"
    elif active:
        message = "the job is in a transaction already: use its connection"
    elif committed:
        message = "the job is completed already, by its transaction"
    elif of_table:
        message = (
            "a record of a table is processed in a transaction already: give the handler a parameter called connection"
        )
    if message:
        raise RuntimeError(message)


def find_step_problem(  # each is a different thing to do
    *, has_database: bool, forked: bool, in_thread: bool, active: bool, committed: bool, over: bool, of_table: bool
) -> str:
    """Return why the running job cannot have a durable step now, or an empty text. The arguments as for `check_begin`.

    in_thread: another thread than the handler's asks. over: the job does not run any more.
    """
    if not has_database:
        return "`jobherd work` has no database, so its jobs have no durable steps: run this kind with `jobherd run`"
    if forked:
        return "a process that a handler has forked cannot have its job's steps: the job is its parent's"
    if in_thread:
        return "a thread that a handler has started cannot have its job's steps: the session serves one thread"
    if committed or over:
        return "the job has ended, so it has no steps any more"
    if of_table:
        return "a record of a table has no durable steps: enqueue a job"
    if active:
        return (
            "a durable step cannot be inside a transaction of the job: end the block before it, or declare the handler "
            "without transactional=True"
        )
    return ""


def find_input_problem(*, has_database: bool, in_thread: bool, active: bool, over: bool) -> str:
    """Return why the running job cannot read results of nodes now, or an empty text.

    in_thread: another thread than the handler's asks, or another process. over: the job has ended.
    """
    if not has_database:
        return (
            "`jobherd work` has no database, so its jobs cannot read results of nodes: pass these as arguments, which "
            "`node.result` does"
        )
    if in_thread:
        return (
            "a thread or process that a handler has started cannot read results of nodes: the session serves one thread"
        )
    if over:
        return "the job has ended, so it cannot read results of nodes any more"
    if active:
        return (
            "results of nodes cannot be read inside a transaction of the job: read them before the block, or declare "
            "the handler without transactional=True"
        )
    return ""


def check_commit(status: TransactionStatus) -> None:
    """Raise RuntimeError with the reason if a transaction in this state cannot be committed."""
    message = ""
    if status is TransactionStatus.INERROR:
        message = (
            "a statement failed in the job's transaction and the handler continued, but PostgreSQL cannot commit "
            "the transaction any more: let the handler raise the exception, or put what may fail into "
            "`with connection.transaction():`"
        )
    elif status is TransactionStatus.ACTIVE:
        message = "a statement still runs in the job's transaction: await everything before the handler returns"
    if message:
        raise RuntimeError(message)


def warn_long(seconds: float) -> None:
    """Log how long a transaction was open, and what that costs the database."""
    _log.warning(
        "the job's transaction was open for %s; meanwhile PostgreSQL could not vacuum what was updated or deleted "
        "in this database. Do the slow part before it, and only what belongs together in `with job.transaction():`",
        duration(seconds),
    )
