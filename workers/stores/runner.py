"""Runs records of tables that the application owns: claims a record, locks it, runs it, settles it.

There are two steps. The claim is committed at once, so that every session can see it. Then one
transaction locks the row, runs the handler within a savepoint, writes the record's new state and
commits. What a failed attempt wrote in that transaction is gone. What a successful one wrote is
committed together with the state. Meanwhile no other session can take the record. If the process or
its session dies, the lock is released automatically. The claim is identified by its started_at, and
every write names it.

It has one separate connection, opened when the first record is looked for, so a worker without
stores has none. This module does not decide when a worker looks. `resetter.py` handles records
whose process is dead.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import dict_row

from jobherd.handlers._define.table_store import Held, TableHandler
from jobherd.handlers._enqueue import default
from jobherd.handlers._enqueue.adapters import OurCursor
from jobherd.handlers._values.outcome import Outcome
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.table_statements import compose
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.stores.dequeue import dequeue
from jobherd.workers.stores.record import Taken, as_job, failure, log_entries, settle_parameters
from jobherd.workers.stores.session import RecordSession, prepare_table_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Session
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.run.executor import Executor
    from jobherd.workers.run.hooks import HookCaller

_log = logging.getLogger("jobherd.tables")

_WITHIN: Final = psycopg.pq.TransactionStatus.INTRANS


def tables_of(handlers: Mapping[str, AnyHandler]) -> list[TableHandler]:
    """Return the handlers of table stores."""
    return [one for one in handlers.values() if isinstance(one, TableHandler)]


class Tables:
    """The stores that a worker serves, in turn.

    taken: called once a record is taken, before it runs: other workers may take more.
    """

    def __init__(
        self,
        tables: Sequence[TableHandler],
        *,
        spec: ChildSpec,
        session: Session,
        executor: Executor,
        interrupts: Interrupts,
        taken: Callable[[], None],
        hooks: HookCaller,
    ) -> None:
        self._tables = list(tables)
        self._spec = spec
        self._session = session
        self._executor = executor
        self._interrupts = interrupts
        self._taken = taken
        self._hooks = hooks
        self._records = RecordSession(session, spec)
        self._at = 0.0
        self._backoff = Backoff(spec.settings.db_retry_initial, spec.settings.db_retry_max)

    def is_due(self) -> bool:
        """Return whether it is time to look for records without a wake.

        Otherwise a busy queue would keep the tables waiting indefinitely.
        """
        return time.monotonic() >= self._at

    def work(self, admits: Callable[[str], bool] = lambda _kind: True) -> bool:
        """Take a record and run it, and return whether there was one.

        If the database is away, there is none.

        admits: returns whether the store of that name may be used. Default: all.
        """
        board = self._spec.board
        try:
            found = self._take(admits)
            board.count_claim(empty=found is None)
            if found is not None:
                self._taken()
                self._run(*found)
                self._executor.recorder.job_log.write()
        except psycopg.Error as problem:
            self._lose(problem)
            board.count_claim(empty=True)
            return False
        now = self._records.used_at = time.monotonic()
        self._backoff.reset()
        self._at = now if found is not None else now + min(table.store.interval for table in self._tables)
        return found is not None

    def close(self) -> None:
        """End the session."""
        self._records.close()

    # -- the two steps

    def _take(self, admits: Callable[[str], bool]) -> tuple[TableHandler, Taken] | None:
        """Step one: claim from the first store that has a record.

        The next call begins with the store after it.
        """
        connection = self._records.ready()
        for place, table in enumerate(self._tables):
            if not admits(table.kind):
                continue
            taken = dequeue(connection, table, self._spec.settings, self._hooks)
            if taken is not None:
                self._tables = self._tables[place + 1 :] + self._tables[: place + 1]
                return table, taken
        return None

    def _run(self, table: TableHandler, taken: Taken) -> None:
        """Step two: lock the record, run it, record its outcome."""
        finished: Finished | None = None
        connection = self._records.connection
        assert connection is not None, "the claim has just been made through it"
        where = {"record": taken.record, "token": taken.token}
        names = table.store.names
        try:
            with connection.transaction():
                if self._session.pooled:
                    prepare_table_session(connection, self._spec.settings, lock_timeout="0", local=True)
                if OurCursor(connection).execute(compose("lock_record", names), where).fetchone() is None:
                    _log.warning(
                        "the claim of record %d was lost before its attempt started",
                        taken.record,
                        extra={"kind": table.kind},
                    )
                    return
                finished = self._attempt(table, taken, connection)
                self._settle(connection, table, taken, finished)
        except (psycopg.Error, ValueError) as problem:
            if finished is None:
                raise psycopg.OperationalError(str(problem)) from problem
            self._settle_apart(table, taken, finished, problem)
        finally:
            table.held = None
            self._interrupts.end()
            self._spec.board.say(CurrentWork(Phase.CLAIMING, self._session.child))
        if table.transactional:
            self._records.reset()

    def _attempt(self, table: TableHandler, taken: Taken, connection: psycopg.Connection[Any]) -> Finished:
        """Run the handler within a savepoint, which is undone if it fails."""
        names = table.store.names
        row = (
            connection.cursor(row_factory=dict_row)
            .execute(compose("read_record", names), {"record": taken.record})
            .fetchone()
        )
        claimed = as_job(table, taken)
        if row is None:
            gone = f"the view {'.'.join(names.view)} has no row for this record"
            unstarted = self._executor.recorder.unstarted(claimed, cancelled=False)
            return unstarted._replace(outcome=Outcome("failed", error=gone))
        table.held = Held(row, connection)
        self._interrupts.begin(taken.token, {taken.record})
        finished: Finished | None = None
        begun = time.monotonic()
        # The handler's enqueued jobs are part of the transaction too.
        before = default.enter_transaction(connection) if table.transactional else None
        try:
            with connection.transaction() as attempt:
                finished = self._executor.execute(claimed, claimed_at=time.monotonic())
                self._keep_job()
                if finished is None:  # The supervisor has lost its lease and requested this. The lock is still held.
                    finished = self._executor.recorder.unstarted(claimed, cancelled=False)
                self._records.check(connection, begun)
                if finished.outcome.label != "ok":
                    raise psycopg.Rollback(attempt)
        except psycopg.Error as problem:
            if finished is None:
                raise
            if finished.outcome.label != "ok" or connection.closed:
                return finished  # What cannot be undone within the transaction is undone with all of it.
            # Deferred constraints, or a handler that has ended the transaction by its own
            # statement.
            error = f"what the handler has written could not be committed: {sanitize(problem, 1000)}"
            outcome = failure(table, taken, error)
            self._executor.recorder.job_log.correct(claimed, outcome, finished.ran or 0.0)
            return finished._replace(outcome=outcome)
        finally:
            if before is not None:
                default.leave_transaction(before)
        return finished

    def _settle(
        self, connection: psycopg.Connection[Any], table: TableHandler, taken: Taken, finished: Finished
    ) -> None:
        if connection.info.transaction_status != _WITHIN:
            message = "the transaction that held the record has ended"
            raise psycopg.OperationalError(message)
        parameters = settle_parameters(
            finished.outcome,
            record=taken.record,
            token=taken.token,
            logs=log_entries(finished, table.kind, began=taken.now),
        )
        if OurCursor(connection).execute(compose("settle_record", table.store.names), parameters).fetchone() is None:
            _log.warning(
                "the claim of record %d was lost, so its outcome was not written",
                taken.record,
                extra={"kind": table.kind},
            )

    def _settle_apart(self, table: TableHandler, taken: Taken, finished: Finished, problem: BaseException) -> None:
        """Record the outcome in another transaction, because the first one is lost.

        This is done only if the outcome does not depend on what was written in the first one.
        """
        broken = self._records.connection is None or self._records.connection.broken
        self.close()
        outcome = finished.outcome
        if outcome.label == "ok" and table.transactional:
            if broken:
                # What the handler wrote may be committed or gone. The record's state, which no
                # other worker may change, shows which.
                lost = "the transaction of record %d was lost with its session; the resetter recovers the record"
                _log.warning(lost, taken.record)
                return
            outcome = failure(
                table, taken, f"the transaction that held the record could not be committed: {sanitize(problem, 1000)}"
            )
            self._executor.recorder.job_log.correct(as_job(table, taken), outcome, finished.ran or 0.0)
        _log.warning(
            "the outcome of record %d is written in a separate transaction: %s", taken.record, type(problem).__name__
        )
        least = Outcome(outcome.label, delay=outcome.delay, error="the database rejected the error's text")
        logs = log_entries(finished, table.kind, began=taken.now)
        attempts = [
            settle_parameters(said, record=taken.record, token=taken.token, logs=logs) for said in (outcome, least)
        ]
        while attempts:
            self._records.terminate_former()
            try:
                connection = self._records.connect()
                OurCursor(connection).execute(compose("settle_record", table.store.names), attempts[0])
            except (psycopg.Error, ValueError) as refusal:
                self.close()
                if isinstance(refusal, psycopg.Error) and is_retryable(refusal):
                    # The session responds, but connecting or settling fails, for lack of space, ids
                    # or connections. Without a pause, each worker would open sessions as fast as
                    # the server can fork, until that is fixed.
                    self._session.waiting.rest(self._backoff.next(), patient=True)
                    continue
                _log.error(
                    "the database rejected the outcome of record %d: %s",
                    taken.record,
                    sanitize(refusal, 500),
                    extra={"kind": table.kind},
                )
                del attempts[0]
            else:
                return

    # -- small things

    def _keep_job(self) -> None:
        """Show on the status board that the record has run and is not settled yet.

        If this process dies now, the status board still names the record.
        """
        if (now := self._spec.board.now()) is not None:
            self._spec.board.say(now._replace(phase=Phase.SETTLING))

    def _lose(self, problem: psycopg.Error) -> None:
        self.close()
        self._at = time.monotonic() + self._backoff.next()
        _log.warning(
            "querying a table failed, retrying in %g s: %s",
            self._backoff.delay,
            sanitize(problem, 300),
            extra={"sqlstate": problem.sqlstate or ""},
        )
