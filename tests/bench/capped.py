"""Measure what a claim costs under a concurrency limit.

The figure is the server's processor time for one claim, against a plain claim, in turn.

Other workers hold claims of the same queue meanwhile, as in a busy fleet, so that there are running
jobs to count. Under a limit a worker claims one job at a time, so the plain claim also takes one.
"""

from __future__ import annotations

import statistics
import sys
from typing import Final

import psycopg

from jobherd.workers.database.wire import Wire
from jobherd.workers.job.row import JobRow, claimed_jobs
from tests.bench.hot import used
from tests.bench.jobs import load
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.queue import Child, Queue

CAPS: Final = {
    "a queue's cap": {"queue": "default", "kind": None},
    "a kind's cap": {"queue": None, "kind": "bench:noop"},
}
SET_CAP: Final = "SELECT jobherd.set_limit(%(queue)s, %(cap)s, %(kind)s)"
BLOCK: Final = 20
"""Claims in a row, so that few of them come directly after a change of the limit."""
AMPLE: Final = 1_000_000
"""A limit that is never reached: the benchmark measures its cost, not its effect."""
NOTHING: Final = {**dict.fromkeys(("limited", "limits", "left_queue", "left_kind")), "narrowed": False}


class Turn:
    """A worker that claims and settles with the product's statements, and measures the server's time for its claims."""

    def __init__(self, child: Child) -> None:
        self._child, self._wire = child, Wire(child.connection, "jobherd", prepared=True)
        self._asked = {**child.parameters(1), **NOTHING, "kinds": ["bench:noop"], "shares": [1e-6]}
        self._backend = child.connection.info.backend_pid

    def claim(self, statement: str) -> tuple[float, list[JobRow]]:
        """Claim once; return the server's microseconds and the jobs."""
        start = used(self._backend)
        rows = self._wire.exchange((statement, self._asked))[0]
        jobs = claimed_jobs(rows)
        assert len(jobs) == 1, rows
        return used(self._backend) - start, jobs

    def claims(self, statement: str) -> float:
        """The server's microseconds for a claim: the median of a block of claims, each settled before the next."""
        costs = []
        for _ in range(BLOCK):
            cost, jobs = self.claim(statement)
            settled = self._child.settle(jobs[0].token, [job.id for job in jobs], "ok")
            assert len(settled) == len(jobs)
            costs.append(cost)
        return statistics.median(costs)


def main() -> int:
    given = arguments(__doc__, rounds=30, held=64)
    report = Report(f"capped: a claim where something has a cap, {given.held} others running")
    with ground() as (_, dsn), Queue(dsn) as queue, psycopg.connect(dsn, autocommit=True) as connection:
        report.on(dsn)
        load(connection, len(CAPS) * given.rounds * 2 * BLOCK + given.held)
        for _ in range(given.held):
            other = queue.child()
            Turn(other).claim("claim/claim_jobs")
            other.connection.close()
        turn = Turn(queue.child())
        for name, target in CAPS.items():
            plain, capped = [], []
            for _ in range(given.rounds):
                plain.append(turn.claims("claim/claim_jobs"))
                connection.execute(SET_CAP, {**target, "cap": AMPLE})
                connection.execute("UPDATE jobherd.gates SET seen_at = now() - interval '1 hour'")
                capped.append(turn.claims("claim/claim_gated"))
                connection.execute(SET_CAP, {**target, "cap": None})
            report.figure(f"the server, a claim under {name}, against a plain one", capped, plain, unit="us")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
