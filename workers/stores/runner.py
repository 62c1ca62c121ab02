"""A worker's side of the tables that the application owns: take a record, hold it, run it, write what became of it.

Two steps. The claim is committed at once, so that all can see it. Then one transaction locks the row, runs the handler within a
savepoint, writes the record's new state and commits: what a failed attempt has written in that transaction is gone, what a successful
one has is there together with the state. While it lasts nobody else can take the record; when the process or its session dies, the lock
goes by itself. The claim is named by its started_at, and every write names it.

One connection of its own, opened when the first record is looked for: a worker without stores has none. Nothing here decides when a
worker looks; what is done about records whose process is dead stands in `resetter.py`.
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
from jobherd.workers.database.connection import UNKNOWN_FUNCTION, is_away
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

STATES: Final = {"ok": "completed", "retry": "errored", "failed": "failed", "poison": "failed", "cancelled": "canceled"}
"""The state that a record gets for an outcome; every other puts it back to the queue."""
_ENDING: Final = 40
"""Times that the server is asked whether a lost session of ours is over."""
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
    """Return the handlers that work a table."""
    return [one for one in handlers.values() if isinstance(one, TableHandler)]


def fate(outcome: Outcome, *, record: int, token: int, logs: Sequence[str] | None = None) -> dict[str, object]:
    """Return the parameters of settle_record.sql for an outcome.

    >>> fate(Outcome("retry", "scheduled", delay=5.0, error="no answer"), record=7, token=1)["state"]
    'errored'
    """
    failed = outcome.label in {"retry", "failed", "poison"}
    return {
        "record": record,
        "token": token,
        "state": STATES.get(outcome.label, "queued"),
        "message": None if outcome.label == "ok" else outcome.error,
        "delay": outcome.delay if outcome.label in {"retry", "snoozed"} else None,
        "failures": int(failed),
        "logs": logs or None,
    }


def log_entries(finished: Finished, kind: str, *, began: float) -> list[str]:
    """Return the entries of the execution log as JSON: those of `job.log(key, ...)`, and what else the attempt has printed and logged.

    began: when the attempt began, in seconds since 1970 by the database's clock.
    """
    if finished.log is None or finished.ran is None:
        return []
    document = orjson.loads(finished.log)
    entries = list(document.get("entries", ()))
    if document["output"].strip():
        code = int(finished.outcome.label != "ok")
        entries.append({"key": kind, "at": began, "exit_code": code, "duration": round(finished.ran, 6), "out": document["output"]})
    return [orjson.dumps(entry).decode() for entry in entries]


class Tables:
    """The stores that a worker serves, in turn.

    taken: called once a record is taken, before it is run: there may be more for others.
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
        self._pause = 0.0
        self._answered = 0.0
        """When the session was last of use, in monotonic seconds."""

    def fit(self) -> bool:
        """Return whether the tables are as the stores say; what is wrong with them is told to the parent, who logs it once for all."""
        while True:
            self._session.run("tell_time")
            try:
                problems = look_at_tables(self._spec.settings, self._tables, pooled=self._session.pooled)
            except psycopg.Error as problem:
                if not is_away(problem):
                    raise
                self._session.rest(self._backoff(), patient=False)
                continue
            self._pause = 0.0
            for each in problems:
                if not send(self._spec.report, Problem(each)):
                    _log.error("%s", each)
            return not problems

    def is_due(self) -> bool:
        """Return whether it is time to look although nobody has called: a busy queue must not keep the tables waiting for ever."""
        return time.monotonic() >= self._at

    def work(self, admits: Callable[[str], bool] = lambda _kind: True) -> bool:
        """Take a record and work it; return whether there was one. The database may be away: then there is none.

        admits: whether a store of that name is looked at; default all are.
        """
        board = self._spec.board
        try:
            found = self._take(admits)
            board.count_claim(empty=found is None)
            if found is not None:
                self._taken()
                self._run(*found)
                self._executor.job_log.write()
        except psycopg.Error as problem:
            self._lose(problem)
            board.count_claim(empty=True)
            return False
        now = self._answered = time.monotonic()
        self._pause = 0.0
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

    # -- the two steps ----------------------------------------------------------------------------------------------

    def _take(self, admits: Callable[[str], bool]) -> tuple[TableHandler, Taken] | None:
        """Step one: the first store that has a record; the next time the one after it comes first."""
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
            # The parameters of a condition are the application's, and are written by what it has registered.
            cursor = OurCursor(connection) if condition == "true" else connection.cursor(row_factory=tuple_row)
            try:
                row = cursor.execute(dequeue, {**parameters, "jobherd_host": settings.host, "jobherd_kind": table.kind}).fetchone()
            except psycopg.Error as problem:
                if condition == "true" or (is_away(problem) and problem.sqlstate != UNKNOWN_FUNCTION):
                    raise
                _log.error("a condition of before_claim is refused: %s", sanitize(problem, 500), extra={"kind": table.kind})
                continue
            if row is not None:
                self._tables = self._tables[place + 1 :] + self._tables[: place + 1]
                return table, Taken._make(row)
        return None

    def _asks(self, table: TableHandler) -> tuple[str, Mapping[str, Any]] | None:
        """Return the condition under which a record of the store may be taken now, and its parameters; None: none may."""
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
                    _log.error("before_claim of %s returned a %s: return None, False or Only(...)", table.kind, type(answer).__name__)
                return None

    def _run(self, table: TableHandler, taken: Taken) -> None:
        """Step two: hold the record, run it, write what became of it."""
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
                    _log.warning("the claim of record %d was lost before it was begun", taken.record, extra={"kind": table.kind})
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
        """Run the handler within a savepoint, that is undone if it fails."""
        names = table.store.names
        row = connection.cursor(row_factory=dict_row).execute(compose("read_record", names), {"record": taken.record}).fetchone()
        claimed = self._claimed(table, taken)
        if row is None:
            gone = f"the view {'.'.join(names.view)} has no row for this record"
            return self._executor.unstarted(claimed, cancelled=False)._replace(outcome=Outcome("failed", "failed", error=gone))
        table.held = Held(row, connection)
        self._interrupts.begin(taken.token, {taken.record})
        finished: Finished | None = None
        begun = time.monotonic()
        before = default.join(connection) if table.transactional else None  # what the handler enqueues is part of it too
        try:
            with connection.transaction() as attempt:
                finished = self._executor.execute(claimed, claimed_at=time.monotonic())
                self._keep_job()
                if finished is None:  # by order of a parent that has lost its lease; the lock is ours all the same
                    finished = self._executor.unstarted(claimed, cancelled=False)
                if time.monotonic() >= begun + QUIET:
                    look_whether_it_answers(connection, self._spec.settings)
                if finished.outcome.label != "ok":
                    raise psycopg.Rollback(attempt)
        except psycopg.Error as problem:
            if finished is None:
                raise
            if finished.outcome.label != "ok" or connection.closed:
                return finished  # what cannot be undone within the transaction goes with the whole of it
            # Constraints that are looked at in the end, or a handler that has ended the transaction by a statement of its own.
            error = f"what the handler has written could not be kept: {sanitize(problem, 1000)}"
            outcome = _failed(table, taken, error)
            self._executor.job_log.correct(claimed, outcome, finished.ran or 0.0)
            return finished._replace(outcome=outcome)
        finally:
            if before is not None:
                default.part(before)
        return finished

    def _settle(self, connection: psycopg.Connection[Any], table: TableHandler, taken: Taken, finished: Finished) -> None:
        if connection.info.transaction_status != _WITHIN:
            message = "the transaction that held the record is over"
            raise psycopg.OperationalError(message)
        parameters = fate(finished.outcome, record=taken.record, token=taken.token, logs=log_entries(finished, table.kind, began=taken.now))
        if OurCursor(connection).execute(compose("settle_record", table.store.names), parameters).fetchone() is None:
            _log.warning("the claim of record %d was lost, what became of it was not written", taken.record, extra={"kind": table.kind})

    def _settle_apart(self, table: TableHandler, taken: Taken, finished: Finished, problem: BaseException) -> None:
        """The transaction is lost: write the outcome in another, if it does not depend on what was written in the first."""
        broken = self._connection is None or self._connection.broken
        self.close()
        outcome = finished.outcome
        if outcome.label == "ok" and table.transactional:
            if broken:
                # What the handler has written may be committed or gone: as the record's state says, which nobody else may touch.
                _log.warning("the transaction of record %d was lost with its session, it is left to the resetter", taken.record)
                return
            outcome = _failed(table, taken, f"the transaction that held the record could not be committed: {sanitize(problem, 1000)}")
            self._executor.job_log.correct(self._claimed(table, taken), outcome, finished.ran or 0.0)
        _log.warning("what became of record %d is written apart from its transaction: %s", taken.record, type(problem).__name__)
        least = Outcome(outcome.label, outcome.state, delay=outcome.delay, error="the database refused the error's own words")
        logs = log_entries(finished, table.kind, began=taken.now)
        attempts = [fate(said, record=taken.record, token=taken.token, logs=logs) for said in (outcome, least)]
        while attempts:
            self._end_former()
            try:
                connection = self._connect()
                OurCursor(connection).execute(compose("settle_record", table.store.names), attempts[0])
            except (psycopg.Error, ValueError) as refusal:
                self.close()
                if isinstance(refusal, psycopg.Error) and is_away(refusal):
                    # The session answers, and this is refused all the same, for want of room, of ids, of a connection: asked without
                    # a rest, each worker would open sessions as fast as the server can fork, while that is mended.
                    self._session.rest(self._backoff(), patient=True)
                    continue
                _log.error("what became of record %d was refused: %s", taken.record, sanitize(refusal, 500), extra={"kind": table.kind})
                del attempts[0]
            else:
                return

    def _end_former(self) -> None:
        """End what the server still has of the lost session, however long the database is away: as long as that stands it holds the record."""
        for _ in range(_ENDING):
            if not self._session.run("end_table_session", {"child": self._session.child}, patient=True)[0][0]:
                break
            self._session.rest(0.05, patient=True)

    def _discard(self) -> None:
        """Put the session back as it was: a search path or a role that a handler has set must not meet the next record."""
        connection, settings = self._connection, self._spec.settings
        if connection is not None and not connection.closed:
            connection.execute(sql.load("discard_session", settings.schema))
            if not self._session.pooled:
                steer(connection, settings, lock_timeout="0")

    # -- small things -----------------------------------------------------------------------------------------------

    @staticmethod
    def _claimed(table: TableHandler, taken: Taken) -> JobRow:
        """Return the record in the words of a queue's job: one executor, one ladder, one way to end."""
        waited = taken.now - taken.run_at
        return JobRow(
            taken.token, taken.record, table.kind, "", "null", taken.failures + 1, None, taken.resets, 0, None,
            taken.created_at, taken.run_at, None, waited if 0 < waited < float("inf") else 0.0, False,
        )  # fmt: skip

    def _keep_job(self) -> None:
        """It has run and is not written yet: should this process die now, the board still names it."""
        if (now := self._spec.board.now()) is not None:
            self._spec.board.say(now._replace(phase=Phase.SETTLING))

    def _backoff(self) -> float:
        settings = self._spec.settings
        self._pause = min(settings.retry_max, max(settings.retry_initial, 2 * self._pause))
        return self._pause

    def _lose(self, problem: psycopg.Error) -> None:
        self.close()
        self._at = time.monotonic() + self._backoff()
        _log.warning(
            "a table could not be looked at, trying again in %g s: %s",
            self._pause,
            sanitize(problem, 300),
            extra={"sqlstate": problem.sqlstate or ""},
        )


def _failed(table: TableHandler, taken: Taken, error: str) -> Outcome:
    if taken.failures < table.store.max_retries:
        return Outcome("retry", "scheduled", delay=table.store.retry_after, error=error, code=UNHANDLED_ERROR)
    return Outcome("failed", "failed", error=error, code=UNHANDLED_ERROR)
