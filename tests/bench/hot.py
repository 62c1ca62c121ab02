"""Measure where the processor time of a no-op job is spent.

The figures are the worker's loop, its side of the exchange, and the server's claim and settlement.

The loop is the worker's own code with simulated claims, in this process. The exchange and the server's
part are the product's statements over the product's wire, in one session, without a supervisor. The
server's time is what its backend has used, as the kernel counts it. Each figure is the median of many
batches: another process that takes the processor does not change it, but one that empties the caches
does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import psycopg

from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._define.hooks import Child as Process
from jobherd.handlers._load.registry import load as load_handlers
from jobherd.handlers._values.outcome import OK
from jobherd.workers import worker
from jobherd.workers.database.wire import Wire
from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.job.finished import Finished, settlement
from jobherd.workers.job.row import claimed_jobs
from jobherd.workers.process.context import ChildContext
from jobherd.workers.process.interrupt import Interrupts
from jobherd.workers.process.spec import ChildSettings, ChildSpec
from jobherd.workers.process.wakeup import Wake
from jobherd.workers.run.hooks import HookCaller
from tests.bench.jobs import load
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.queue import Child, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = str(Path(__file__).with_name("work.py"))
DOCUMENT = '{"n": 1, "user_id": 1234567, "action": "send_welcome_email", "locale": "en_GB", "ref": "ab12cd34ef56"}'


class ThinAir:
    """A simulated session: every claim is full, and every settlement succeeds."""

    child, backend, sessions, pooled = 1, 1, 1, False

    def __init__(self, *_: object, **_how: object) -> None:
        self.ids = count(1)

    def is_whole(self) -> bool:
        return True

    def run(self, statement: str, said: dict[str, Any] | None = None, **_how: object) -> list[tuple[object, ...]]:
        if said is None:
            assert statement == "maintenance/count_dead_rows"
            return [("ready", 0, 0), ("scheduled", 0, 0)]
        if "wanted" not in said:  # A separate settlement: the batch took longer than an outcome may wait.
            return [(job,) for job in said["ids"]]
        token = next(self.ids)
        jobs = [(next(self.ids), "bench:noop", DOCUMENT, 1, 0, 1.0, 1.0, None) for _ in range(said["wanted"])]
        return [(token, "default", None, 1, None, 1.1, None, None), *jobs]

    def run_both(
        self, _first: str, before: dict[str, Any], _second: str, claim: dict[str, Any]
    ) -> tuple[list[tuple[object, ...]], ...]:
        assert before["ids"]
        return [(len(before["ids"]),)], self.run("claim/claim_jobs", claim)

    def run_ahead(
        self, _first: str, claim: dict[str, Any], _behind: str, after: dict[str, Any]
    ) -> list[tuple[object, ...]]:
        assert after["ids"]
        return self.run("claim/claim_jobs", claim)

    def second_response(self) -> list[tuple[object, ...]]:
        return [(1,)]


def loop(batch: int, rounds: int) -> Iterator[float]:
    """Yield the microseconds per job of the worker's loop, for each batch."""
    hears, calls = os.pipe2(os.O_NONBLOCK)
    board, control = StatusBoard("bench"), ControlBlock()
    control.lease_deadline = float("inf")
    settings = ChildSettings(dsn="", handlers=(WORK,), most_claimed=batch, claim_window=0.05, log_level="ERROR")
    spec = ChildSpec("worker", 0, 1, 1, os.getppid(), hears, calls, board, control, settings)
    wake = Wake(hears, parent=os.getppid())
    interrupts = Interrupts(board, wake)
    interrupts.install()
    with patch.object(worker, "session_of", ThinAir):  # It raises an error if a worker gets its session elsewhere.
        life = worker.Worker(
            ChildContext(spec, wake, interrupts, lambda _title: None),
            load_handlers([WORK]).kinds,
            HookCaller(Hooks(), Process(), interrupts, spec.board),
        )
    for _ in range(rounds + 20):
        start = time.process_time()
        jobs = life._claimer.next()
        assert jobs
        life._work(jobs)
        spent = time.process_time() - start
        if len(jobs) == batch:
            yield spent / batch * 1e6
    signal.setitimer(signal.ITIMER_REAL, 0)


def used(pid: int) -> float:
    """Processor microseconds that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def turns(child: Child, batch: int, rounds: int, keep: int) -> Iterator[tuple[float, float, float]]:
    """Yield microseconds per job, for each round.

    They are the client's for one claim and one settlement, the server's for the claim, and the server's
    for the settlement.
    """
    wire = Wire(child.connection, "jobherd", prepared=True)
    pid = child.connection.info.backend_pid
    claim = {**child.parameters(batch), "kinds": ["bench:noop"], "shares": [1e-6]}
    for _ in range(rounds):
        at, start = time.process_time(), used(pid)
        jobs = claimed_jobs(wire.exchange(("claim/claim_jobs", claim))[0])
        between, claimed = time.process_time() - at, used(pid)
        assert len(jobs) == batch
        done = [Finished(job.id, OK, 1e-6, time.monotonic(), keep) for job in jobs]
        at = time.process_time()
        parameters = settlement(child.id, jobs[0].token, done, ran_on="host/1", now=time.monotonic())
        assert wire.exchange(("settle/settle_completed", parameters)) == [[(batch,)]]
        own = between + time.process_time() - at
        yield own / batch * 1e6, (claimed - start) / batch, (used(pid) - claimed) / batch


def main() -> int:
    given = arguments(__doc__, batch=500, rounds=200)
    report = Report(f"hot: where a job's processor time goes, in batches of {given.batch}")
    with ground() as (_, dsn), Queue(dsn) as queue, psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        for keep, said in ((7, "completed jobs kept"), (0, "completed jobs not kept")):
            load(connection, given.batch * (given.rounds + 20))
            found = list(turns(queue.child(), given.batch, given.rounds + 20, keep))[20:]
            if keep:
                report.figure("the worker's side of the exchange", [one[0] for one in found], unit="us")
                report.figure("the server, claim", [one[1] for one in found], unit="us")
            report.figure(f"the server, settlement, {said}", [one[2] for one in found], unit="us")
    report.figure("the worker's loop", list(loop(given.batch, given.rounds)), unit="us")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
