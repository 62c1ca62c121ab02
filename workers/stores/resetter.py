"""The resetter: handles the records of the application's tables that no worker can handle.

It resets records that are in work without a worker, records the outcomes of records whose process
has died, and sends heartbeats for running records. It has canceled or deleted records stopped, and
requests a wake of a worker when records wait. It loads the handlers for the stores they declare,
and runs no record. Several resetters on one table do no harm: each skips what another has locked.

A worker cannot do this itself, because it is in user code while it runs a record. So the resetter
reads the running records from the status boards.
"""

from __future__ import annotations

import logging
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from jobherd import sql
from jobherd.handlers._values.outcome import Outcome
from jobherd.handlers._values.sanitize import sanitize
from jobherd.workers.database.connection import Session
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.database.waiting import StopWaiting
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_REQUESTED, CancelJob, MoreWork, Ready, send
from jobherd.workers.job.finished import Finished
from jobherd.workers.run.loading import load_handlers
from jobherd.workers.stores.duties import NEVER, Duties
from jobherd.workers.stores.record import log_entries, settle_parameters
from jobherd.workers.stores.runner import tables_of
from jobherd.workers.stores.session import session_name
from jobherd.workers.stores.table_connection import TableConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._define.table_store import TableHandler
    from jobherd.workers.process.context import ChildContext

_log = logging.getLogger("jobherd.resetter")

CANCELLED: Final = "cancelled"


class _Run(NamedTuple):
    """The record that a slot runs."""

    slot: int
    child: int
    kind: str
    record: int
    token: int


def run(context: ChildContext) -> int:
    """Live as a resetter and return the exit code.

    Signals must be unblocked, and nothing of the supervisor may be left in this process.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: _dismiss(context))
    loaded = load_handlers(context)
    if loaded is None:
        return EXIT_HANDLERS
    resetter = Resetter(context, tables_of(loaded[0]))
    try:
        resetter.live()
    except StopWaiting as reason:
        _log.info("exiting: %s", reason)
    finally:
        resetter.close()
    context.spec.board.say(CurrentWork(Phase.LEAVING))
    return EXIT_REQUESTED


class Resetter:
    """The stores, and a connection for them."""

    def __init__(self, context: ChildContext, tables: Sequence[TableHandler]) -> None:
        self._spec = context.spec
        self._wake = context.wake
        self._title = context.title
        self._session = Session(context.spec, context.wake)
        self._duties = [Duties(table) for table in tables]
        self._tables = TableConnection(context.spec.settings, self._session)
        self._told: set[tuple[int, int, int]] = set()
        self._bury_at = 0.0

    def live(self) -> None:
        """Connect, report READY, and handle the tables until dismissed. Raises StopWaiting."""
        self._session.connect()
        self._spec.board.say(CurrentWork(Phase.IDLE, self._session.child))
        self._title("recovers records of tables")
        send(self._spec.report, Ready(self._session.child, self._session.backend))
        called = True
        while True:
            # Read before the round: what the supervisor has noted by then is still written.
            dismissed = self._wake.dismissed
            self._do_what_is_due(called=called or dismissed)
            if dismissed:
                break
            at = min((duties.due_at() for duties in self._duties), default=NEVER)
            called = self._wake.wait(max(0.0, min(at, self._bury_at) - time.monotonic()))

    def close(self) -> None:
        """End the sessions."""
        self._tables.close()
        self._session.close()

    def _do_what_is_due(self, *, called: bool) -> None:
        now = time.monotonic()
        if called or now >= self._bury_at:
            self._bury_at = now + self._spec.settings.poll
            self._try("the dead", self._settle_dead)
        running = self._running()
        self._told &= {(run.slot, run.token, run.record) for run in running}
        looked = not self._duties
        for duties in self._duties:
            looked = called or looked or now >= duties.look_at
            if not self._try(duties.store.name, partial(self._serve, duties, running, now, called=called)):
                duties.put_off(now)
        if looked:
            # For --until-empty: how often all stores were checked, and whether the last check found
            # nothing.
            quiet = all(duties.quiet for duties in self._duties)
            self._spec.board.set_idle(idle=quiet)
            self._spec.board.count_claim(empty=quiet)

    def _serve(self, duties: Duties, running: Sequence[_Run], now: float, *, called: bool) -> None:
        store = duties.store
        here = [run for run in running if run.kind == store.name]
        if now >= duties.beat_at:
            self._beat(duties, here)
            duties.beat_at = now + store.heartbeat_interval
        if now >= duties.cancel_at:
            self._stop(duties, here)
            duties.cancel_at = now + store.cancel_interval
        if now >= duties.reset_at:
            self._reset(duties)
            duties.reset_at = now + store.reset_interval
        if called or now >= duties.look_at:
            self._look(duties)
            duties.look_at = now + store.interval

    def _try(self, whose: str, duty: Callable[[], None]) -> bool:
        """Run a task and return whether the database allowed it.

        An error for one store must not keep the others waiting.
        """
        try:
            duty()
        except psycopg.Error as problem:
            self._tables.close()
            level = logging.WARNING if is_retryable(problem) else logging.ERROR
            _log.log(
                level,
                "%s could not be checked, trying again: %s",
                whose,
                sanitize(problem, 300),
                extra={"sqlstate": problem.sqlstate or ""},
            )
            return False
        return True

    # -- the duties

    def _look(self, duties: Duties) -> None:
        [(waits, works)] = self._tables.ask("find_waiting", duties.store.names, {"jobherd_kind": duties.store.name})
        duties.quiet = not waits and not works
        if waits:
            send(self._spec.report, MoreWork())

    def _beat(self, duties: Duties, running: Sequence[_Run]) -> None:
        if running:
            self._tables.execute(
                "beat_records",
                duties.store.names,
                {"records": [run.record for run in running], "tokens": [run.token for run in running]},
            )

    def _stop(self, duties: Duties, running: Sequence[_Run]) -> None:
        """Cancel flagged records that wait, and have the supervisor stop running ones that must not continue."""
        self._tables.execute("cancel_waiting", duties.store.names, {"message": CANCELLED})
        if not running:
            return
        slots = {(run.record, run.token): run.slot for run in running}
        where = {
            "records": [run.record for run in running],
            "tokens": [run.token for run in running],
            "sessions": [session_name(run.child, self._spec.settings.schema) for run in running],
        }
        for record, token in self._tables.ask("find_records_to_stop", duties.store.names, where):
            told = (slots[record, token], token, record)
            if told not in self._told and send(self._spec.report, CancelJob(told[0], token, record)):
                self._told.add(told)

    def _reset(self, duties: Duties) -> None:
        store = duties.store
        parameters = {
            "age": store.stalled_max_age,
            "most": store.max_resets,
            "message": given_up(store.max_resets),
            "cancelled": CANCELLED,
        }
        for record, state in self._tables.ask("reset_stalled", duties.store.names, parameters):
            _log.warning(
                "record %d was in work without a live worker and was reset to %s",
                record,
                state,
                extra={"kind": store.name},
            )

    def _settle_dead(self) -> None:
        """Record the outcomes of records whose process has died, in one transaction."""
        stores = {duties.store.name: duties for duties in self._duties}
        connection = self._tables.ready()
        with connection.transaction():
            taken = connection.execute(
                sql.load("table/take_table_ends", self._spec.settings.schema), {"kinds": list(stores)}
            ).fetchall()
            for kind, record, token, label, crashed, delay, error, log, ran, at in taken:
                duties = stores[kind]
                outcome = Outcome(label, delay=delay, error=error)
                logs = log_entries(Finished(record, outcome, ran, log=log), kind, began=at - (ran or 0.0))
                if crashed:
                    most = duties.store.max_resets
                    statement, parameters = "reset_ended", {
                        "record": record, "token": token, "most": most, "cancelled": CANCELLED, "post_mortem": error,
                        "logs": logs or None,
                        "message": f"{given_up(most)}; the last time: {error}",
                    }  # fmt: skip
                else:
                    statement, parameters = (
                        "settle_record",
                        settle_parameters(outcome, record=record, token=token, logs=logs),
                    )
                try:
                    with connection.transaction():
                        rows = self._tables.ask(statement, duties.store.names, parameters)
                except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError) as problem:
                    # A trigger or a check of the application rejected it, which must not hold back
                    # the other records.
                    _log.error(
                        "the database rejected the outcome of record %d: %s",
                        record,
                        sanitize(problem, 300),
                        extra={"kind": kind},
                    )
                    continue
                if rows:
                    _log.info(
                        "record %d %s",
                        record,
                        "was released" if crashed else "was settled for its process",
                        extra={"kind": kind},
                    )

    # -- small things

    def _running(self) -> list[_Run]:
        """Return the records on the status boards that run, or have run and are not settled yet."""
        found = []
        for number, board in enumerate(self._spec.boards):
            now = board.now()
            if (
                now is not None
                and now.job
                and now.phase in (Phase.RUNNING, Phase.SETTLING)
                and (policy := board.tally.policy(now.kind)).table
            ):
                found.append(_Run(number, now.child, policy.name, now.job, now.token))
        return found


def given_up(resets: int) -> str:
    """Return the error message of a record that was reset too often."""
    return (
        f"given up: the processes that worked on this record have died {resets + 1} times, its store allows "
        f"{resets} (max_resets)"
    )


def _dismiss(context: ChildContext) -> None:
    context.wake.dismissed = True
    context.wake.poke()
