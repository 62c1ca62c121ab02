"""Run two servers under Patroni with etcd: a switchover, then kill -9 of the leader, under load.

This shows what `failover.py` cannot: Patroni decides on the promotion, the old leader is rewound and
becomes a standby, and sessions can reach a read-only server. With synchronous_mode nothing that was
acknowledged is lost. With --synchronous 0, commits that the standby had not received may be lost.

The acknowledged ids are recorded outside the database: the producer writes each to a file.
"""

from __future__ import annotations

import sys
import time

import psycopg

from jobherd import sql
from jobherd.sql.migrate import migrate
from tests.faults.campaign import Campaign
from tests.support.figures import Report
from tests.support.ground import AHEAD, arguments
from tests.support.patroni import TTL, Patroni

LONG = "SELECT jobherd.enqueue('fault:sleep', jsonb_build_object('seconds', %s))"
STATE = "SELECT state, attempts FROM jobherd.jobs WHERE id = %s"


def main() -> int:
    given = arguments(__doc__, rounds=1, rate=60.0, synchronous=1, long=45.0)
    mode = "synchronous" if given.synchronous else "asynchronous"
    report = Report(f"patroni: a switchover and kill -9 of the leader, {mode}, {given.rounds} times", given.seed)
    for number in range(given.rounds):
        with Patroni(synchronous=bool(given.synchronous)) as pair:
            with psycopg.connect(pair.dsn(), autocommit=True) as owner:
                owner.execute("CREATE DATABASE jobs")
            dsn = pair.dsn("jobs")
            with psycopg.connect(dsn, autocommit=True) as owner:
                migrate(owner)
                owner.execute(sql.load("maintenance/keep_partitions"), {"ahead": AHEAD, "most": None})
            report.on(dsn)
            once(report, pair, dsn, given.seed + number, rate=given.rate, long=given.long, lost=not given.synchronous)
    return report.end()


def once(report: Report, pair: Patroni, dsn: str, seed: int, *, rate: float, long: float, lost: bool) -> None:
    with Campaign(report, dsn, seed=seed, rate=rate) as field:
        field.work_on(30)
        [(job,)] = field.audit.run(LONG, long)
        field.wait(lambda: field.audit.run(STATE, job)[0][0] == "running", "the long job")

        begun = time.monotonic()
        leader = pair.switch_over()
        field.audit.reconnect()
        field.work_on(5)
        report.fact(f"switchover to {leader}: 5 more jobs after", f"{time.monotonic() - begun:.1f} s")

        pair.wait_for_standby()
        field.work_on(30)
        begun = time.monotonic()
        killed = pair.kill_leader()
        leader = pair.wait_for_leader(but=killed)
        promoted = time.monotonic()
        field.audit.reconnect()
        field.work_on(5)
        report.fact(
            f"kill -9 of {killed}: {leader} leads after",
            f"{promoted - begun:.1f} s (ttl {TTL} s), and 5 more jobs {time.monotonic() - promoted:.1f} s after it",
        )
        pair.start(killed)  # Patroni rewinds it, and it becomes the standby.
        pair.wait_for_standby()
        field.wait(lambda: field.audit.run(STATE, job)[0][0] == "completed", "the long job to end")
        attempts = field.audit.run(STATE, job)[0][1]
        report.holds("a long job ran through both, in one attempt", attempts == 1, attempts)
        field.finish(lost=lost)
        report.fact("acknowledged", len(field.acknowledged))


if __name__ == "__main__":
    sys.exit(main())
