"""Simulates many claimers: processes that settle and claim in one round trip, as workers do.

They do nothing in between. So they cost the server what many workers cost it, without the workers'
own work. With 256 of them on two processors, the question is what the server loses because of their
number, not how fast they are.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psycopg

from jobherd.handlers._values.outcome import OK
from jobherd.workers.database.wire import Wire
from jobherd.workers.job.finished import Finished, settlement
from jobherd.workers.job.row import claimed_jobs
from tests.support.figures import at
from tests.support.queue import Queue

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KEEP = 7


class Run(NamedTuple):
    """The result of one run of claimers."""

    jobs: int
    seconds: float
    exchanges: list[float]
    """Seconds of each exchange."""
    server: float
    """Processor seconds of their backends."""

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def each(self) -> float:
        """The server's microseconds per job."""
        return self.server / max(1, self.jobs) * 1e6

    @property
    def p50(self) -> float:
        return at(self.exchanges, 0.5) * 1000


def used(pid: int) -> float:
    """Processor seconds that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def claimer(dsn: str, supervisor: int, number: int, orders: Connection) -> None:
    """Run one claimer: for each order (end, jobs of a claim), claim and settle until the end, and send the result."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        wire = Wire(connection, "jobherd", prepared=True)
        wire.exchange(("session/force_index_plans", {"local": False}))
        me = {"supervisor": supervisor, "incarnation": number, "slot": 0, "kind": "worker", "pid": 1, "pid_started": 1}
        [[(child, backend)]] = wire.exchange(("lease/register_child", me))
        orders.send(backend)
        while order := orders.recv():
            until, batch = order
            claim = {
                "supervisor": supervisor,
                "child": child,
                "served": None,
                "turns": None,
                "avoided": None,
                "wanted": batch,
            }
            claim |= {"kinds": None, "shares": None, "short": ["bench:noop"]}
            spans: list[float] = []
            jobs = 0
            rows: Any = wire.exchange(("claim/claim_jobs", claim))[0]
            while rows and (begun := time.monotonic()) < until:
                done = [Finished(job.id, OK, 1e-6, begun, KEEP) for job in claimed_jobs(rows)]
                said = settlement(child, rows[0][0], done, ran_on="host/1", now=begun)
                _, rows = wire.exchange_each(("settle/settle_completed", said), ("claim/claim_jobs", claim))
                spans.append(time.monotonic() - begun)
                jobs += len(done)
            if rows:
                done = [Finished(job.id, OK, 1e-6, begun, KEEP) for job in claimed_jobs(rows)]
                wire.exchange(
                    ("settle/settle_completed", settlement(child, rows[0][0], done, ran_on="host/1", now=begun))
                )
            orders.send((jobs, spans))


class Claimers:
    """Processes of simulated claimers, which start when the context is entered."""

    def __init__(self, dsn: str, most: int) -> None:
        with Queue(dsn) as queue:
            supervisor = queue.supervisor().id
        fork = multiprocessing.get_context("fork")
        pairs = [fork.Pipe() for _ in range(most)]
        self._ends = [ours for ours, _ in pairs]
        self._family = [
            fork.Process(target=claimer, args=(dsn, supervisor, number, theirs), daemon=True)
            for number, (_, theirs) in enumerate(pairs)
        ]

    def __enter__(self) -> Self:
        for process in self._family:
            process.start()
        self._backends = [end.recv() for end in self._ends]
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.send(None)
        for process in self._family:
            process.join()

    def run(self, number: int, *, batch: int, seconds: float) -> Run:
        """Let `number` claimers claim at the same time for `seconds`."""
        before = sum(map(used, self._backends))
        begun = time.monotonic()
        for end in self._ends[:number]:
            end.send((begun + seconds, batch))
        told = [end.recv() for end in self._ends[:number]]
        took = time.monotonic() - begun
        return Run(
            sum(jobs for jobs, _ in told),
            took,
            [span for _, spans in told for span in spans],
            sum(map(used, self._backends)) - before,
        )
