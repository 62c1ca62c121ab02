"""Runs a job's own transaction: the handler's writes, its enqueued jobs and its completion commit together.

It has a separate session, opened when a job first needs one. What a handler does to a session
(settings, temporary tables, an interrupted statement) must not reach the session that claims and
settles. Its first statement locks the row of the claim. So no other session can release, settle or
reclaim the job before the transaction has ended, and nothing here has to guess: the outcome is what
the database returns. That holds for the supervisor too. It ends both sessions of a dead worker and
then settles under the fencing token, which finds no row if the completion was committed.

The job must be alone in its claim, because the row that this transaction locks cannot be settled for
others. The rest of a larger claim is released first, and its kind is claimed alone from then on.

A handler that commits or rolls back itself is detected by the transaction's id. Its job fails,
because what it wrote may already be committed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from jobherd.handlers._run.transaction import TransactionEndedError
from jobherd.handlers._values.outcome import TRANSACTION_ENDED, Outcome
from jobherd.handlers._values.payload import encode_result
from jobherd.workers.job.finished import is_plain, settlement
from jobherd.workers.process.interruptions import JobLost
from jobherd.workers.run.deferred_interrupts import deferred_interrupts
from jobherd.workers.run.inputs import Inputs
from jobherd.workers.run.job_connection import AnyJobConnection, AsyncJobConnection, JobConnection, closed_pgconn
from jobherd.workers.run.steps import Steps
from jobherd.workers.run.transaction_end import commit, send_last
from jobherd.workers.run.transaction_messages import (
    ENDED_BY_HANDLER,
    NO_TRANSACTION,
    check_begin,
    warn_long,
)
from jobherd.workers.run.transaction_session import TransactionSession
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from psycopg.pq.abc import PGconn

    from jobherd.workers.database.connection import Session
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.run.executor import Executor

    Writes = Sequence[tuple[str, Mapping[str, object]]]


class Transactions:
    """The transactions of a worker's jobs, one at a time.

    It is the `jobherd.handlers._run.transaction.TransactionHost` of the running job.
    used: whether the running job has requested one, or a durable step; then the executor calls
    `conclude`. active: one is open. ended: the handler ended it itself. committed: the job is completed
    in the database. steps: its durable steps. inputs: results that it reads. own_session: where all of this
    happens.
    """

    def __init__(
        self, session: Session, spec: ChildSpec, interrupts: Interrupts, *, ran_on: str, be_alone: Callable[[], None]
    ) -> None:
        self.used = self.active = self.committed = self.ended = False
        self.own_session = TransactionSession(session, spec)
        self._long = spec.settings.long_transaction
        self._has_database = spec.settings.uplink is None
        self.steps = Steps(self, spec.board, has_database=self._has_database)
        self.inputs = Inputs(self, has_database=self._has_database)
        self._interrupts = interrupts
        self._ran_on = ran_on
        self._be_alone = be_alone
        self.executor: Executor
        self._own: JobConnection | AsyncJobConnection | None = None
        self._xact = ""
        self._began = 0.0

    # -- for handlers

    def begin(self) -> psycopg.Connection[Any]:
        """Begin the transaction, which locks the claim from now on.

        Raises JobLost if the claim is lost already, RuntimeError, psycopg.Error.
        """
        return self._kept(JobConnection(self._begin()))

    def abegin(self) -> psycopg.AsyncConnection[Any]:
        """`begin` for coroutines.

        Beginning and ending block the event loop for a round trip, but no other job waits for it.
        """
        return self._kept(AsyncJobConnection(self._begin()))

    def connection(self) -> psycopg.Connection[Any] | psycopg.AsyncConnection[Any]:
        """Return the connection of the open transaction. Raises RuntimeError if there is none."""
        if self._own is None or not self.active:
            raise RuntimeError(NO_TRANSACTION)
        return self._own

    def complete(self, result: object) -> None:
        """Complete the job in the transaction and commit. If this raises, nothing was committed."""
        with self.deferred_interrupts():  # An interrupt in the middle of a commit would leave the commit in doubt.
            try:
                outcome = Outcome("ok", result=encode_result(result))
            except BaseException:
                self._undo()
                raise
            self._commit(outcome)

    def commit_step(self, first: Writes, values: Mapping[str, object]) -> None:
        """Record a step in the transaction and commit. Whether a commit in doubt did so, the next attempt reads.

        first: statements that go with the record.
        """

        def record() -> tuple[str, Mapping[str, object]]:
            for statement, parameters in first:
                self.own_session.run(statement, parameters)
            return "steps/record_step", values

        with self.deferred_interrupts():
            if (doubt := self._end_with(record)) is not None:
                self._undo()
                raise doubt
            self._over()
            self.own_session.reset()

    def undo(self) -> None:
        """Roll back."""
        with self.deferred_interrupts():
            self._undo()

    # -- for the executor, with interrupts deferred

    def conclude(self, outcome: Outcome, judge: Callable[[BaseException], Outcome]) -> Outcome:
        """Commit or roll back after the handler has returned, and return the outcome of the job.

        judge: turns an exception of the commit into an outcome. Raises as Session.run does, when
        waiting has no use any more.
        """
        if self.active and outcome.label == "ok":
            try:
                self._commit(outcome)
            except (psycopg.Error, ValueError, RuntimeError, JobLost) as problem:
                outcome = judge(problem)
        elif self.active:
            self._undo()
        if self.steps.suspension is not None and self._interrupts.raised is None:
            outcome = self.steps.suspended(outcome, judge)
        if self.ended:
            outcome = Outcome("failed", code=TRANSACTION_ENDED, error=ENDED_BY_HANDLER)
        self.steps.forget()
        self.used = self.ended = False
        return outcome

    def settle(self, outcome: Outcome, writes: Writes) -> None:
        """Settle the job together with these statements. Raises as `begin` and `complete` do."""
        self._begin()
        self._commit(outcome, writes)

    def close(self) -> None:
        """End the session."""
        self.own_session.close()

    # -- the steps

    def _begin(self) -> PGconn:
        running = self.executor.running
        check_begin(
            forked=self._interrupts.forked,
            active=self.active,
            committed=self.committed,
            of_table=running is None or not running.queue,
            has_database=self._has_database,
        )
        self.used = True
        if self.executor.shares_claim:
            with self.deferred_interrupts():  # It uses the session whose statements must not be interrupted.
                self._be_alone()
                self.executor.shares_claim = False
        known = self.own_session.connection is not None
        try:
            return self._lock()
        except psycopg.OperationalError:
            connection = self.own_session.connection
            if not known or (connection is not None and not connection.broken):
                raise
        return self._lock()  # The session had ended while it was unused.

    def _kept(self, own: AnyJobConnection) -> AnyJobConnection:
        """Keep the job's connection and return it. Behind a pooler it prepares no statement.

        The backend would keep it, DISCARD ALL may reach another backend, and the next job uses the
        same names.
        """
        self._own = own
        if self.own_session.pooled:
            own.prepare_threshold = None
        return own

    def _lock(self) -> PGconn:
        self.active = False
        session, running = self.own_session, self.executor.running
        connection = session.ready()
        assert running is not None
        self._xact = ""
        connection.autocommit = False
        self.active = True
        claim = {"child": session.child, "token": running.token, "job": running.id}
        rows = session.wire.exchange(("settle/begin_transaction", {}), ("settle/lock_claim", claim))[-1]
        if not rows:
            self.lose()
        self._xact = rows[0][0]
        reach("transaction.begun")
        self._began = time.monotonic()
        return connection.pgconn

    def _commit(self, outcome: Outcome, writes: Writes = ()) -> None:
        """Settle the job, and write what goes with it, and commit. If this raises, nothing was committed."""
        running = self.executor.running
        assert running is not None

        def settle() -> tuple[str, Mapping[str, object]]:
            one, now = self.executor.describe(outcome), time.monotonic()
            values = settlement(self.own_session.child, running.token, [one], ran_on=self._ran_on, now=now)
            return "settle/settle_completed" if is_plain([one]) else "settle/settle_jobs", values

        for statement, parameters in writes:
            self.own_session.run(statement, parameters)
        doubt = self._end_with(settle)
        if doubt is not None and self.own_session.end(self._xact, running.token) != ("committed", False):
            self._undo()
            raise doubt
        self._over()
        self.committed = True
        self.own_session.reset()

    def _end_with(self, write: Callable[[], tuple[str, Mapping[str, object]]]) -> psycopg.Error | None:
        """End the transaction as `send_last` and `commit` do. Whatever is raised, nothing was committed."""
        try:
            if not send_last(self.own_session, self._xact, write):
                self.lose()
            return commit(self.own_session)
        except BaseException as problem:
            self.ended = self.ended or isinstance(problem, TransactionEndedError)
            self._undo()
            raise

    def _undo(self) -> None:
        if not self.active:
            return
        running = self.executor.running
        self._over()
        if self._interrupts.forked:
            return  # The session belongs to the process that forked this one.
        token, usable = 0 if running is None else running.token, self._interrupts.raised is None
        if self.own_session.undo(self._xact, token, usable=usable) and not self.committed:
            self.ended = True

    def _over(self) -> None:
        """Close the transaction's connection object."""
        self.active = False
        if self._own is not None:
            self._own.pgconn = closed_pgconn()
            self._own = None
        if (seconds := time.monotonic() - self._began) > self._long and self._xact:
            warn_long(seconds)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy that the handler has forked."""
        return self._interrupts.forked

    def lose(self) -> NoReturn:
        """Interrupt the job, whose claim is lost."""
        lost = self._interrupts.raised = JobLost("the claim is lost")
        raise lost

    def deferred_interrupts(self) -> AbstractContextManager[None]:
        """Defer interrupts."""
        return deferred_interrupts(self._interrupts, lambda: self.committed)
