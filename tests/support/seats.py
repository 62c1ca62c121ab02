"""Runs child processes without a supervisor: the test forks them and acts as their supervisor.
def test_something(bench: Bench):
        child = bench.start()                       # forked, READY, waits for work
        job = bench.enqueue("act:returns", value=3)
        child.nudge()
        assert bench.wait(job, "completed")["result"] == 3
        assert child.dismiss() == EXIT_REQUESTED

The test does not sleep or poll. It blocks on the report pipe, on the end of a process, or on a
notification, which triggers in the test's database send when a job changes its table.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import termios
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.workers import main
from jobherd.workers.ipc import pipes
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.counters import OUTCOMES, Policy
from jobherd.workers.ipc.current_work import Interruption, Reason
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.process.spec import ChildSettings, ChildSpec
from tests.support.patience import GLANCE, LIMIT
from tests.support.processes import is_running, wait_for_exit

ROOT = Path(__file__).parents[2]
ACTING = str(ROOT / "tests" / "workers" / "acting.py")

WATCH = """
CREATE FUNCTION public.seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('seen', TG_TABLE_NAME);
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER INSERT OR DELETE ON jobherd.history FOR EACH STATEMENT EXECUTE FUNCTION public.seen();
CREATE TRIGGER seen AFTER INSERT OR DELETE ON jobherd.scheduled FOR EACH STATEMENT EXECUTE FUNCTION public.seen();
CREATE TRIGGER seen AFTER INSERT OR DELETE ON jobherd.ready FOR EACH STATEMENT EXECUTE FUNCTION public.seen();
CREATE TRIGGER seen AFTER INSERT OR DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION public.seen();
CREATE TRIGGER seen AFTER INSERT OR UPDATE ON jobherd.progress FOR EACH STATEMENT EXECUTE FUNCTION public.seen();
"""


@dataclass
class Child:
    """The supervisor's side of a forked child."""

    pid: int
    spec: ChildSpec
    wake: int
    report: int
    inbox: pipes.Inbox = field(default_factory=pipes.Inbox)
    heard: list[pipes.Report] = field(default_factory=list)
    code: int | None = None

    @property
    def board(self) -> StatusBoard:
        return self.spec.board

    def nudge(self) -> None:
        self.spec.control.bump()
        pipes.wake(self.wake)

    def wait_report(self, kind: type[Any], timeout: float = LIMIT) -> Any:
        """Wait until the child has sent a report of this kind; remove and return it."""
        until = time.monotonic() + timeout
        while True:
            for report in self.heard:
                if isinstance(report, kind):
                    self.heard.remove(report)
                    return report
            if not select.select([self.report], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no {kind.__name__} within {timeout} s")
            data = os.read(self.report, 65536)
            if not data:
                raise EOFError(
                    f"the process ended without a {kind.__name__}; the log: {self.board.log_tail().decode()}"
                )
            self.heard.extend(self.inbox.take(data))

    def wait_idle(self, timeout: float = LIMIT) -> None:
        """Wait until the child is idle.

        The status board is shared memory without events, so this polls each millisecond.
        """
        until = time.monotonic() + timeout
        while not self.board.idle:
            assert time.monotonic() < until, f"the child is not idle after {timeout} s"
            select.select([self.report], [], [], 0.001)

    def wait_heard(self, timeout: float = LIMIT) -> None:
        """Wait until the child has read its wake-up.

        No event reports that a pipe has become empty, so this polls each millisecond.
        """
        until = time.monotonic() + timeout
        while struct.unpack("i", fcntl.ioctl(self.wake, termios.FIONREAD, bytes(4)))[0]:
            assert time.monotonic() < until, f"the child has not read its wake-up after {timeout} s"
            select.select([self.report], [], [], 0.001)

    def interrupt(self, reason: Reason, *, job: int | None = None) -> None:
        """Interrupt the job that the child runs, as a supervisor does."""
        now = self.board.now()
        assert now is not None
        self.board.interrupt(Interruption(reason, now.token, now.job if job is None else job))
        os.kill(self.pid, signal.SIGUSR2)

    def dismiss(self) -> int:
        """Dismiss the child as a supervisor does; return its exit code."""
        self.board.dismiss()
        self.close_wake()
        return self.wait()

    def close_wake(self) -> None:
        if self.wake >= 0:
            os.close(self.wake)
            self.wake = -1

    def wait(self, timeout: float = LIMIT) -> int:
        """Wait until the child has ended; return its exit code (negative: the signal)."""
        if self.code is None:
            wait_for_exit(self.pid, timeout)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def wait_or_idle(self, timeout: float = LIMIT) -> int:
        """Wait until the child has ended or is idle, then dismiss it; return its exit code."""
        until = time.monotonic() + timeout
        while is_running(self.pid) and not self.board.idle:
            assert time.monotonic() < until, f"the child has neither ended nor become idle within {timeout} s"
            select.select([], [], [], 0.002)
        return self.dismiss()

    def log(self) -> str:
        return self.board.log_tail(65536).decode()

    def close(self) -> None:
        if self.code is None:
            if is_running(self.pid):
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.wait()
        self.close_wake()
        os.close(self.report)
        self.board.close()


class Bench:
    """A registered supervisor without a process, and the children that a test forks for it.

    `watched`: the database has the triggers already.
    """

    def __init__(self, dsn: str, *, watched: bool = False) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        if not watched:
            self.connection.execute(WATCH)
        self.connection.execute("LISTEN seen")
        self.supervisor = self.ask(
            sql.load("lease/register_supervisor"),
            host="test",
            machine="test",
            pid=os.getpid(),
            pid_started=1,
            version="0",
            lease=600.0,
        )[0]["id"]
        self.control = ControlBlock()
        self.control.lease_deadline = time.monotonic() + 600
        self.children: list[Child] = []
        self.incarnation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.close()
        self.connection.close()
        os.close(self.control.fd)

    def ask(self, text: str, **parameters: object) -> list[dict[str, Any]]:
        cursor = self.connection.execute(text, parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    def fork(
        self,
        kind: str = "worker",
        *,
        boards: tuple[StatusBoard, ...] = (),
        capture: bool = False,
        parent: int | None = None,
        **settings: Any,
    ) -> Child:
        """Fork a child and return at once.

        Args:
            kind: the kind of child process.
            boards: status boards that the child can read.
            capture: capture its output, as a supervisor does. The test does not read it.
            parent: pid that the child expects as its parent; default: this process.
            settings: fields of `ChildSettings`.
        """
        self.incarnation += 1
        wake_read, wake_write = pipes.open_pipe()
        report_read, report_write = pipes.open_pipe()
        board = StatusBoard(f"test-{self.incarnation}")
        board.tally.declare([Policy()])
        output = os.pipe2(os.O_CLOEXEC) if capture else None
        if output is not None:
            os.set_blocking(output[0], False)
        given = {
            "dsn": self.dsn,
            "handlers": (ACTING,),
            "app_dir": ROOT,
            "poll": 600.0,
            "db_retry_initial": 0.01,
            "host": "test",
            "http": None,
        }
        spec = ChildSpec(
            kind=kind,
            slot=len(self.children),
            incarnation=self.incarnation,
            supervisor=self.supervisor,
            parent=parent or os.getpid(),
            wake=wake_read,
            report=report_write,
            board=board,
            control=self.control,
            settings=ChildSettings(**given | settings),
            boards=boards,
            output=output,
        )
        others = [end for child in self.children for end in (child.wake, child.report) if end >= 0]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, 0)
                for fd in (wake_write, report_read, self.connection.fileno(), *others):
                    os.close(fd)
                main.main(spec)
            finally:
                os._exit(99)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(wake_read)
        os.close(report_write)
        if output is not None:
            os.close(output[0])
            os.close(output[1])
        child = Child(pid, spec, wake_write, report_read)
        self.children.append(child)
        return child

    def start_orphan_to_be(self, kind: str = "worker", **settings: Any) -> tuple[int, int]:
        """Start a child of an intermediate process, which a test can kill; return the pids of both."""
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            try:
                os.setpgid(0, 0)
                child = self.fork(kind, **settings)
                os.close(read)
                child.wait_report(pipes.Ready)
                os.write(write, str(child.pid).encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(write)
        pid = int(os.read(read, 100))
        os.close(read)
        return middle, pid

    def start(self, kind: str = "worker", **settings: Any) -> Child:
        """Fork a child and wait until it is ready."""
        child = self.fork(kind, **settings)
        child.wait_report(pipes.Ready)
        return child

    def enqueue(self, kind: str, *, options: dict[str, object] | None = None, **payload: object) -> int:
        return int(
            self.ask(
                "SELECT jobherd.enqueue(%(kind)s, %(payload)s::jsonb, %(options)s::jsonb) AS id",
                kind=kind,
                payload=json.dumps(payload),
                options=json.dumps(options or {}),
            )[0]["id"]
        )

    def insert(self, kind: str, payload: str) -> int:
        """Insert a job with a payload that enqueue would reject."""
        return int(
            self.ask(
                "INSERT INTO jobherd.ready (kind, payload) VALUES (%(k)s, %(p)s::json) RETURNING id", k=kind, p=payload
            )[0]["id"]
        )

    def job(self, job: int) -> dict[str, Any] | None:
        # Without the payload: Python may be unable to parse one that raw SQL inserted.
        rows = self.ask(
            "SELECT id, kind, queue, state, attempts, max_attempts, crashes, result, error, error_code, run_at, created_at, started_at,"
            " finished_at, progress, history, token, ran_on FROM jobherd.jobs WHERE id = %(id)s",
            id=job,
        )
        assert len(rows) <= 1, f"job {job} is in two places: {rows}"
        return rows[0] if rows else None

    def wait(self, job: int, *states: str, timeout: float = LIMIT) -> dict[str, Any]:
        """Wait until a job is in one of these states; return its row."""

        def there() -> dict[str, Any] | None:
            row = self.job(job)
            return row if row is not None and row["state"] in states else None

        try:
            return self.wait_until(there, f"job {job} in {states}", timeout=timeout)
        except TimeoutError as problem:
            problem.add_note(f"the job is {self.job(job)}")
            raise

    def wait_until(self, there: Any, what: str = "the condition", *, timeout: float = LIMIT) -> Any:
        """Wait until `there()` is true; return its value. It is checked when a job moves, and twice a second."""
        until = time.monotonic() + timeout
        while True:
            if found := there():
                return found
            left = until - time.monotonic()
            if left <= 0:
                tails = "\n".join(child.log() for child in self.children)
                raise TimeoutError(f"waited {timeout} s for {what}; the logs:\n{tails}")
            for _ in self.connection.notifies(timeout=min(left, GLANCE), stop_after=1):
                pass


def count_of(child: Child, kind: str, outcome: str) -> int:
    """Return the count of an outcome on a child's status board."""
    return sum(
        counts.outcomes[OUTCOMES.index(outcome)] for counts in child.board.tally.kind_counts() if counts.name == kind
    )


def wait_for_line(child: Child, words: str, timeout: float = LIMIT) -> None:
    """Wait until a child's log contains these words. The log is shared memory without events, so this polls."""
    until = time.monotonic() + timeout
    while words not in child.log():
        assert time.monotonic() < until, f"no {words!r} in the log within {timeout} s, but: {child.log()}"
        select.select([], [], [], 0.002)
