"""Keeps the records of the running job's durable steps in the database.

They are read and written in the session of the job's own transactions (`transaction_session.py`),
each record in a separate commit or, for a step transaction, in the commit of the step's effect.
Every write names the claim and its token. If the claim is lost, nothing is written, and the run is
interrupted. A record whose answer was lost is sent again. If that does not help, the attempt fails,
and the next one reads whether it was recorded.

The records are read when an attempt runs its first step, and dropped when it ends.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg

from jobherd.handlers._run.dispositions import JobSuspended
from jobherd.handlers._run.durable import Durable
from jobherd.handlers._run.steps import FOREVER, Record, StepError, decoded, encoded
from jobherd.workers.database.errors import is_retryable
from jobherd.workers.inspect.phrases import duration
from jobherd.workers.process.interruptions import JobLost
from jobherd.workers.run.attempt_count import begin_count, new_count
from jobherd.workers.run.child_jobs import find_values, judged, spawn_values, spawned_by, wait_values
from jobherd.workers.run.step_records import opened, sealed
from jobherd.workers.run.suspension import Suspension
from jobherd.workers.run.transaction_messages import SWALLOWED, find_step_problem
from jobherd.workers.system.failpoints import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._run.child_job_methods import Parent
    from jobherd.handlers._run.child_jobs import ChildCall, Spawned
    from jobherd.handlers._values.outcome import Outcome
    from jobherd.workers.database.opening import Row
    from jobherd.workers.database.wire import Request
    from jobherd.workers.ipc.status_board import StatusBoard
    from jobherd.workers.run.transaction import Transactions

PAUSES: Final = (0.1, 0.5, 1.0, 3.0, 5.0)
"""Seconds between two tries to reach the database. The step is done, and its record is worth some patience."""


class Steps:
    """The steps of a worker's running job. It is the `jobherd.handlers._run.steps.StepHost` of that job."""

    def __init__(self, transactions: Transactions, board: StatusBoard, *, has_database: bool) -> None:
        self._transactions = transactions
        self._board = board
        self._has_database = has_database
        self._records: dict[str, Record] | None = None
        self._first = 0
        self._names: set[str] = set()
        self._sleeps = self._spawns = 0
        self._read = (0.0, 0.0)
        self.suspension: Suspension | None = None
        """How the handler has suspended its job."""

    # -- for handlers

    def enter(self, job: Durable, name: str) -> Record | None:
        """Begin a step and return its record if it is done."""
        records = self._known(job)
        if name in self._names:
            message = f"the name {name!r} is used twice in one attempt: in a loop, put the item into the name"
            raise StepError(message)
        self._names.add(name)
        return records.get(name)

    def leave(self, name: str) -> None:
        """Note that a step has failed, so that its name can be used again."""
        self._names.discard(name)

    def record(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step. The name must have been entered."""
        reach("step.done")
        self._check(job)
        self._record(job, name, result)

    def begin(self, _job: Durable, _name: str) -> psycopg.Connection[Any]:
        """Begin the transaction of a step."""
        return self._transactions.begin()

    def abegin(self, _job: Durable, _name: str) -> psycopg.AsyncConnection[Any]:
        """`begin` for coroutines."""
        return self._transactions.abegin()

    def commit(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step in the open transaction and commit."""
        reach("step.done")
        try:
            with new_count(self._transactions, self._board, job) as first:
                self._transactions.commit_step(first, self._values(job, name, result))
        except BaseException:
            self.leave(name)
            raise
        reach("step.recorded")
        self._note(name, result)

    def undo(self, name: str) -> None:
        """Roll the open transaction back."""
        self.leave(name)
        self._transactions.undo()

    def sleep(self, job: Durable, name: str | None, seconds: float) -> None:
        """Suspend the job, unless it has slept until the time that is recorded."""
        self._check(job)
        self._sleeps += name is None
        name = f"sleep:{self._sleeps}" if name is None else name
        record = self.enter(job, name)
        if record is None:
            first = begin_count(self._transactions)
            values = self._values(job, name, None) | {"seconds": seconds, "attempt": 1 if first else job.attempt}
            writes = (*first, ("steps/record_sleep", values))
            self._suspend(Suspension(f"the job sleeps for {duration(seconds)}", seconds, writes))
        elif (left := self._seconds_until(record)) > 0:
            self._suspend(Suspension(f"the job sleeps for another {duration(left)}", left))

    def wait(self, job: Durable, name: str, topic: str, seconds: float | None) -> Record:
        """Return the record of a signal or of the timeout, or suspend the job."""
        record = self.enter(job, name)
        if record is not None:
            return record
        about = self._values(job, name, None) | {"topic": topic, "seconds": seconds, "flow": None}
        rows = self.exchange(("steps/find_signal", about))
        if not rows:
            self._transactions.lose()
        [(signal, payload, waited, left)] = rows
        if waited:
            seconds = left
        if signal is None and (seconds is None or seconds > 0):
            about["seconds"] = seconds
            delay = FOREVER if seconds is None else seconds
            self._suspend(Suspension(f"the job waits for {topic}", delay, (("steps/record_wait", about),)))
        found = "{}" if signal is None else f'{{"payload":{payload or "null"}}}'
        self._record(job, name, found, "steps/record_signal", signal=signal)
        return Record(found, self._version(job))

    def spawn(self, job: Parent, name: str | None, calls: Sequence[ChildCall[Any]], *, leaves: bool) -> Spawned:
        """Enqueue child jobs and record the step, unless that is done."""
        assert isinstance(job, Durable)
        self._check(job)
        self._spawns += name is None
        name = f"spawn:{self._spawns}" if name is None else name
        record = self.enter(job, name)
        if record is None:
            try:
                about = spawn_values(job, calls, leaves=leaves)
                reach("step.done")
                [(found,)] = self._write(job, name, None, "steps/spawn_children", **about)
            except BaseException:
                self.leave(name)
                raise
            if found is None:
                self._transactions.lose()
            reach("step.recorded")
            self._note(name, found)
            record = Record(found)
        return spawned_by(name, record)

    def gather(self, job: Parent, spawned: Spawned, *, failures: bool) -> Record:
        """Return what became of the children, or suspend the job."""
        assert isinstance(job, Durable)
        name = f"gather:{spawned.name}"
        record = self.enter(job, name)
        if record is not None:
            return record
        if not spawned.jobs:
            return Record("[]")
        if not (rows := self.exchange(("steps/find_children", self._values(job, name, None) | find_values(spawned)))):
            self._transactions.lose()
        entries = judged(spawned, rows[0])
        if entries is None:
            about = self._values(job, name, None) | wait_values(spawned)
            message = f"the job waits for {spawned.jobs} child jobs of step {spawned.name!r}"
            self._suspend(Suspension(message, FOREVER, (("steps/record_wait", about),)))
        text = encoded(name, entries)
        if not failures and any("failed" in entry for entry in entries):
            self.leave(name)  # The next attempt looks again: the children may have been run again.
            return Record(text)
        self._record(job, name, text, "steps/record_signal", signal=None)
        return Record(text, self._version(job))

    def began_with(self, job: Durable) -> int:
        """Return the version of the first record, or the handler's own if there is none."""
        self._known(job)
        return self._first or self._version(job)

    # -- for the executor

    def suspended(self, outcome: Outcome, judge: Callable[[BaseException], Outcome]) -> Outcome:
        """Settle the job that its handler has suspended, and return its outcome.

        judge: as for `Transactions.conclude`.
        """
        if outcome.label != "suspended" or self.suspension is None:
            return outcome if outcome.failed else SWALLOWED
        try:
            self._transactions.settle(outcome, self.suspension.writes)
        except (psycopg.Error, ValueError, RuntimeError, JobLost) as problem:
            return judge(problem)
        return outcome

    def forget(self) -> None:
        """Drop the records of the job that has ended."""
        self._records, self._first, self._sleeps, self._spawns, self.suspension = None, 0, 0, 0, None
        self._names.clear()

    # -- the steps

    def _known(self, job: Durable) -> dict[str, Record]:
        """Return the records of the running job, which its first step reads."""
        self._check(job)
        if self._records is None:
            self._transactions.used = True
            rows = self.exchange(("steps/list_steps", {"job": job.id}))
            self._records = {name: Record(opened(job, name, result), version) for name, result, version, _ in rows}
            self._first = rows[0][2] if rows else 0
            self._read = (rows[0][3] if rows else 0.0, time.monotonic())
        return self._records

    def _suspend(self, suspension: Suspension) -> NoReturn:
        """End the attempt. What must be written is written when the handler has ended, with its settlement."""
        self.suspension = suspension
        raise JobSuspended(suspension.message, suspension.delay)

    def _seconds_until(self, record: Record) -> float:
        """Return how long a sleep lasts yet, by the database's clock."""
        until = datetime.fromisoformat(decoded(record.result)["until"]).timestamp()
        at, when = self._read
        return until - at - (time.monotonic() - when)

    def _note(self, name: str, result: str | None) -> None:
        assert self._records is not None
        self._records[name] = Record(result)

    def _check(self, job: Durable) -> None:
        transactions = self._transactions
        running = transactions.executor.running
        problem = find_step_problem(
            has_database=self._has_database,
            forked=transactions.is_forked,
            in_thread=threading.current_thread() is not threading.main_thread(),
            active=transactions.active,
            committed=transactions.committed,
            over=running is None or (running.id, running.token) != (job.id, job.token),
            of_table=running is not None and not running.queue,
        )
        if problem:
            raise StepError(problem)

    def _values(self, job: Durable, name: str, result: str | None) -> dict[str, object]:
        if result is not None and self._transactions.executor.kinds[job.kind].encrypts:
            result = sealed(job, name, result)
        return {
            "child": self._transactions.own_session.child,
            "token": job.token,
            "job": job.id,
            "name": name,
            "result": result,
            "attempt": job.attempt,
            "version": self._version(job),
        }

    def _version(self, job: Durable) -> int:
        return self._transactions.executor.kinds[job.kind].handler.policy.version

    def _record(
        self, job: Durable, name: str, result: str | None, statement: str = "steps/record_step", **about: object
    ) -> None:
        """Record a step by a statement that returns no row if the claim is lost. Raises JobLost and psycopg.Error."""
        if not self._write(job, name, result, statement, **about):
            self._transactions.lose()
        reach("step.recorded")
        self._note(name, result)

    def _write(self, job: Durable, name: str, result: str | None, statement: str, **about: object) -> list[Row]:
        """Send a statement that records a step, and return its rows. Raises psycopg.Error."""
        with new_count(self._transactions, self._board, job) as first:
            return self.exchange(*first, (statement, self._values(job, name, result) | about))

    def exchange(self, *requests: Request) -> list[Row]:
        """Send statements in a separate transaction and return the rows of the last one. Raises psycopg.Error."""
        session = self._transactions.own_session
        for pause in (*PAUSES, None):
            try:
                with self._transactions.deferred_interrupts():
                    session.ready()
                    return session.wire.exchange(*requests)[-1]
            except psycopg.Error as problem:
                if pause is None or not is_retryable(problem):
                    raise
            time.sleep(pause)  # Interrupts are raised here.
        raise AssertionError
