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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import psycopg
from psycopg.rows import dict_row, tuple_row

from jobherd import sql
from jobherd.handlers._define.claim_filter import Only
from jobherd.handlers._define.table_store import Held, TableHandler
from jobherd.handlers._enqueue import default
from jobherd.handlers._enqueue.adapters import OurCursor
from jobherd.handlers._values.outcome import UNHANDLED_ERROR, Outcome, Raised
from jobherd.handlers._values.sanitize import sanitize
from jobherd.sql.composed import compose
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import is_condition_wrong, is_retryable
from jobherd.workers.ipc.pipes import Problem, send
from jobherd.workers.ipc.status_board import CurrentWork, Phase
from jobherd.workers.job.row import JobRow
from jobherd.workers.stores.session import QUIET, connect, look_at_tables, look_whether_it_answers, session_name, steer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.workers.database.connection import Session
    from jobherd.workers.job.finished import Finished
    from jobherd.workers.process.interrupt import Interrupts
    from jobherd.workers.process.spec import ChildSpec
    from jobherd.workers.run.executor import Executor
    from jobherd.workers.run.hooks import Caller

_log = logging.getLogger("jobherd.tables")

STATES: Final = {"completed": "completed", "failed": "failed", "cancelled": "canceled"}
"""The state of a record for each final state of a job. Every other outcome returns the record to the
queue."""
_ENDING: Final = 40
"""Checks whether the server has ended a lost session."""
_WITHIN: Final = psycopg.pq.TransactionStatus.INTRANS


class Taken(NamedTuple):
    """A row of dequeue_record.sql."""

    record: int
    token: int
    failures: int
    resets: int
    created_at: float
    run_at: float
    now: float


def tables_of(handlers: Mapping[str, AnyHandler]) -> list[TableHandler]:
    """Return the handlers of table stores."""
    return [one for one in handlers.values() if isinstance(one, TableHandler)]


def fate(outcome: Outcome, *, record: int, token: int, logs: Sequence[str] | None = None) -> dict[str, object]:
    """Return the parameters of settle_record.sql for an outcome.

    >>> fate(Outcome("retry", delay=5.0, error="no answer"), record=7, token=1)["state"]
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
        hooks: Caller,
    ) -> None:
        self._tables = list(tables)
        self._spec = spec
        self._session = session
        self._executor = executor
        self._interrupts = interrupts
        self._taken = taken
        self._hooks = hooks
        self._connection: psycopg.Connection[Any] | None = None
        self._at = 0.0
        self._backoff = Backoff(spec.settings.db_retry_initial, spec.settings.db_retry_max)
        self._answered = 0.0
        """When the session was last used successfully, in monotonic seconds."""

    def fit(self) -> bool:
        """Return whether the tables are as their stores declare.

        Problems are reported to the supervisor, which logs them once for all workers.
        """
        while True:
            self._session.run("observe/show_time")
            try:
                problems = look_at_tables(self._spec.settings, self._tables, pooled=self._session.pooled)
            except psycopg.Error as problem:
                if not is_retryable(problem):
                    raise
                self._session.waiting.rest(self._backoff.next(), patient=False)
                continue
            self._backoff.reset()
            for each in problems:
                if not send(self._spec.report, Problem(each)):
                    _log.error("%s", each)
            return not problems

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
        now = self._answered = time.monotonic()
        self._backoff.reset()
        self._at = now if found is not None else now + min(table.store.interval for table in self._tables)
        return found is not None

    def _connect(self) -> psycopg.Connection[Any]:
        name = session_name(self._session.child, self._spec.settings.schema)
        self._connection = connect(self._spec.settings, name, pooled=self._session.pooled)
        return self._connection

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the two steps

    def _take(self, admits: Callable[[str], bool]) -> tuple[TableHandler, Taken] | None:
        """Step one: claim from the first store that has a record.

        The next call begins with the store after it.
        """
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connect()
        elif time.monotonic() >= self._answered + QUIET:
            look_whether_it_answers(connection, self._spec.settings)
        for place, table in enumerate(self._tables):
            if not admits(table.kind) or (only := self._asks(table)) is None:
                continue
            condition, parameters = only
            settings = self._spec.settings
            dequeue = compose("dequeue_record", table.store.names, settings.schema, condition)
            # The parameters of a condition are the application's, and are encoded by adapters it
            # has registered.
            cursor = OurCursor(connection) if condition == "true" else connection.cursor(row_factory=tuple_row)
            try:
                row = cursor.execute(
                    dequeue, {**parameters, "jobherd_host": settings.host, "jobherd_kind": table.kind}
                ).fetchone()
            except psycopg.Error as problem:
                if condition == "true" or not is_condition_wrong(problem):
                    raise
                _log.error(
                    "PostgreSQL rejects a condition of before_claim: %s",
                    sanitize(problem, 500),
                    extra={"kind": table.kind},
                )
                continue
            if row is not None:
                self._tables = self._tables[place + 1 :] + self._tables[: place + 1]
                return table, Taken._make(row)
        return None

    def _asks(self, table: TableHandler) -> tuple[str, Mapping[str, Any]] | None:
        """Return the condition under which a record of the store may be taken now, and its parameters.

        None: no record may be taken.
        """
        asked = table.store.asked
        if asked is None:
            return "true", {}
        match self._hooks.call(asked, lambda: asked(self._hooks.child)):
            case None | True:
                return "true", {}
            case Only(condition=condition, parameters=parameters):
                if condition is None:
                    return "true", {}
                return condition if isinstance(condition, str) else condition.as_string(), parameters
            case answer:
                if answer is not False and not isinstance(answer, Raised):
                    _log.error(
                        "before_claim of %s returned a %s: return None, False or Only(...)",
                        table.kind,
                        type(answer).__name__,
                    )
                return None

    def _run(self, table: TableHandler, taken: Taken) -> None:
        """Step two: lock the record, run it, record its outcome."""
        finished: Finished | None = None
        connection = self._connection
        assert connection is not None, "the claim has just been made through it"
        where = {"record": taken.record, "token": taken.token}
        names = table.store.names
        try:
            with connection.transaction():
                if self._session.pooled:
                    steer(connection, self._spec.settings, lock_timeout="0", local=True)
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
            self._discard()

    def _attempt(self, table: TableHandler, taken: Taken, connection: psycopg.Connection[Any]) -> Finished:
        """Run the handler within a savepoint, which is undone if it fails."""
        names = table.store.names
        row = (
            connection.cursor(row_factory=dict_row)
            .execute(compose("read_record", names), {"record": taken.record})
            .fetchone()
        )
        claimed = self._claimed(table, taken)
        if row is None:
            gone = f"the view {'.'.join(names.view)} has no row for this record"
            unstarted = self._executor.recorder.unstarted(claimed, cancelled=False)
            return unstarted._replace(outcome=Outcome("failed", error=gone))
        table.held = Held(row, connection)
        self._interrupts.begin(taken.token, {taken.record})
        finished: Finished | None = None
        begun = time.monotonic()
        # The handler's enqueued jobs are part of the transaction too.
        before = default.join(connection) if table.transactional else None
        try:
            with connection.transaction() as attempt:
                finished = self._executor.execute(claimed, claimed_at=time.monotonic())
                self._keep_job()
                if finished is None:  # The supervisor has lost its lease and requested this. The lock is still held.
                    finished = self._executor.recorder.unstarted(claimed, cancelled=False)
                if time.monotonic() >= begun + QUIET:
                    look_whether_it_answers(connection, self._spec.settings)
                if finished.outcome.label != "ok":
                    raise psycopg.Rollback(attempt)
        except psycopg.Error as problem:
            if finished is None:
                raise
            if finished.outcome.label != "ok" or connection.closed:
                return finished  # What cannot be undone within the transaction is undone with all of it.
            # Deferred constraints, or a handler that has ended the transaction by its own
            # statement.
            error = f"what the handler has written could not be kept: {sanitize(problem, 1000)}"
            outcome = _failed(table, taken, error)
            self._executor.recorder.job_log.correct(claimed, outcome, finished.ran or 0.0)
            return finished._replace(outcome=outcome)
        finally:
            if before is not None:
                default.part(before)
        return finished

    def _settle(
        self, connection: psycopg.Connection[Any], table: TableHandler, taken: Taken, finished: Finished
    ) -> None:
        if connection.info.transaction_status != _WITHIN:
            message = "the transaction that held the record is over"
            raise psycopg.OperationalError(message)
        parameters = fate(
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
        broken = self._connection is None or self._connection.broken
        self.close()
        outcome = finished.outcome
        if outcome.label == "ok" and table.transactional:
            if broken:
                # What the handler wrote may be committed or gone. The record's state, which no
                # other worker may change, shows which.
                _log.warning(
                    "the transaction of record %d was lost with its session; the resetter recovers the record",
                    taken.record,
                )
                return
            outcome = _failed(
                table, taken, f"the transaction that held the record could not be committed: {sanitize(problem, 1000)}"
            )
            self._executor.recorder.job_log.correct(self._claimed(table, taken), outcome, finished.ran or 0.0)
        _log.warning(
            "the outcome of record %d is written in a separate transaction: %s", taken.record, type(problem).__name__
        )
        least = Outcome(outcome.label, delay=outcome.delay, error="the database rejected the error's text")
        logs = log_entries(finished, table.kind, began=taken.now)
        attempts = [fate(said, record=taken.record, token=taken.token, logs=logs) for said in (outcome, least)]
        while attempts:
            self._end_former()
            try:
                connection = self._connect()
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

    def _end_former(self) -> None:
        """End the lost session on the server, however long the database is away.

        As long as that session exists, it locks the record.
        """
        for _ in range(_ENDING):
            if not self._session.run("table/terminate_table_session", {"child": self._session.child}, patient=True)[0][
                0
            ]:
                break
            self._session.waiting.rest(0.05, patient=True)

    def _discard(self) -> None:
        """Reset the session.

        A search path or a role set by a handler must not affect the next record.
        """
        connection, settings = self._connection, self._spec.settings
        if connection is not None and not connection.closed:
            connection.execute(sql.load("session/discard_session", settings.schema))
            if not self._session.pooled:
                steer(connection, settings, lock_timeout="0")

    # -- small things

    @staticmethod
    def _claimed(table: TableHandler, taken: Taken) -> JobRow:
        """Return the record as a job of a queue, so that one executor and one stop sequence serve both."""
        waited = taken.now - taken.run_at
        return JobRow(
            taken.token, taken.record, table.kind, "", "null", taken.failures + 1, None, taken.resets, 0, None,
            taken.created_at, taken.run_at, None, waited if 0 < waited < float("inf") else 0.0, False,
        )  # fmt: skip

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


def _failed(table: TableHandler, taken: Taken, error: str) -> Outcome:
    if taken.failures < table.store.max_retries:
        return Outcome("retry", delay=table.store.retry_after, error=error, code=UNHANDLED_ERROR)
    return Outcome("failed", error=error, code=UNHANDLED_ERROR)
