"""Counts the running attempt of a job as the first one when it records a step: the option `attempts_per_step`.

Three readers of the count must agree: the statement that ends the attempt (the row of the claim), the
supervisor if the worker dies (the status board), and the handler (its `Job`). An attempt that is the
first one already changes nothing and sends nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobherd.handlers._run.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._run.durable import Durable
    from jobherd.workers.database.wire import Request
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.run.executor import Executor
    from jobherd.workers.run.transaction import Transactions


def begin_count(transactions: Transactions) -> tuple[Request, ...]:
    """Return what must be sent with the record of a step: nothing, or the statement that begins the count."""
    executor = transactions.executor
    row = executor.running
    assert row is not None
    if row.attempts == 1 or not executor.kinds[row.kind].handler.policy.attempts_per_step:
        return ()
    claim = {"child": transactions.own_session.child, "token": row.token, "job": row.id}
    return (("steps/begin_count", claim),)


@contextmanager
def new_count(transactions: Transactions, board: StatusBoard, job: Durable) -> Iterator[tuple[Request, ...]]:
    """Count the attempt as the first one while the block records a step. Yields what it must send with the record.

    Order: the board before the record. If the worker dies in between, the job has one attempt too many. The
    other way round, a job whose step is recorded could fail for want of attempts.
    """
    first, executor, before = begin_count(transactions), transactions.executor, job.attempt
    if first:
        _renumber(executor, board, job, 1)
    try:
        yield first
    except Exception:
        # Invariant: an attempt that has recorded nothing counts, or a step that always fails is retried without end.
        # If the session was lost, the record may exist.
        if first and not transactions.own_session.is_lost:
            _renumber(executor, board, job, before)
        raise


def _renumber(executor: Executor, board: StatusBoard, job: Durable, attempt: int) -> None:
    now, row = board.now(), executor.running
    assert now is not None
    assert row is not None
    assert isinstance(job, Job)
    board.say(now._replace(attempts=attempt))
    executor.running = row._replace(attempts=attempt)
    job.attempt = attempt
