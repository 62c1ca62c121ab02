"""Kill the primary and promote its standby under load; the DSN names both, the standby first.

With a synchronous standby nothing that was acknowledged is lost. With an asynchronous standby that
is behind (--behind 1), the commits after the last one that it received are lost with the primary:
acknowledged jobs are missing, and completed jobs run again. Each row of the audit contains the WAL
position at which it was written, so the campaign compares both with what the standby had received.

With --split 1 the standby is promoted while the primary lives and accepts writes: an operator's
mistake that no client can notice. A process that has a session keeps it. A process that loses its
session connects to the first host of the DSN that accepts writes. So one supervisor works on each
server, until the old primary is made read-only: then every process connects to the new one without
help. The campaign counts the jobs that each server has received since the promotion, because the
other server does not have them.
"""

from __future__ import annotations

import sys
import time

import psycopg
from psycopg.conninfo import make_conninfo

from tests.faults.campaign import Campaign
from tests.support.figures import Report
from tests.support.ground import SETTINGS, arguments, fresh
from tests.support.postgres import Cluster
from tests.support.standby import NAME, Standby

ARRIVED = (
    "SELECT job, min(lsn - '0/0') FROM audit.steps WHERE step = 'ready' AND token IS NULL AND attempts = 0 GROUP BY job"
)
DONE = "SELECT job, max(lsn - '0/0') FROM audit.steps WHERE step = 'completed' GROUP BY job"
KNOWN = "SELECT DISTINCT job FROM audit.steps"
OVER = "SELECT DISTINCT job FROM audit.steps WHERE step = 'completed'"
LEFT = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'jobherd:%:%'"
MOVE = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a, jobherd.supervisors s
 WHERE s.pid = %s AND (a.application_name = 'jobherd:supervisor:' || %s::text OR a.application_name LIKE 'jobherd:%%:' || s.id || ':%%')"""
"""End the sessions of one supervisor and its child processes."""
PLACED = "ALTER TABLE audit.steps ADD COLUMN lsn pg_lsn DEFAULT pg_current_wal_insert_lsn()"


def main() -> int:
    given = arguments(__doc__, rounds=2, rate=60.0, seconds=5.0, behind=0, split=0)
    what = "an asynchronous standby that has fallen behind" if given.behind else "a synchronous standby"
    what = "a standby, beside a primary that goes on" if given.split else what
    report = Report(f"failover: {given.rounds} times to {what}", given.seed)
    for number in range(given.rounds):
        if given.split:
            split(report, given.seed + number, rate=given.rate, seconds=given.seconds)
            continue
        once(report, given.seed + number, rate=given.rate, seconds=given.seconds, behind=bool(given.behind))
    return report.end()


def once(report: Report, seed: int, *, rate: float, seconds: float, behind: bool) -> None:
    with Cluster(SETTINGS) as primary, fresh(primary) as first:
        report.on(first)
        with Standby(primary, SETTINGS) as standby:
            if not behind:
                order(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
            both = make_conninfo(first, host=f"{standby.data},{primary.data}", port=f"{standby.port},{primary.port}")
            writable = make_conninfo(both, target_session_attrs="read-write")
            with Campaign(report, writable, seed=seed, rate=rate) as field:
                field.audit.run(PLACED)
                field.work_on(30)
                received = detach(standby) if behind else 0
                time.sleep(seconds)
                arrived, done = (dict(field.audit.run(look)) for look in (ARRIVED, DONE))
                primary.kill()
                killed = time.monotonic()
                standby.promote()
                promoted = time.monotonic()
                with psycopg.connect(standby.dsn(field.audit.connection.info.dbname), autocommit=True) as look:
                    known = {
                        job
                        for (job,) in look.execute(
                            "SELECT DISTINCT job FROM audit.steps WHERE lsn IS NOT NULL"
                        ).fetchall()
                    }
                field.audit.reconnect()
                field.work_on(5)
                report.fact(
                    "promotion",
                    f"{promoted - killed:.1f} s, and 5 more jobs {time.monotonic() - promoted:.1f} s after it",
                )
                if behind:
                    compare(report, arrived, done, field, known=known, received=received)
                field.finish(lost=behind)


def split(report: Report, seed: int, *, rate: float, seconds: float) -> None:
    with Cluster(SETTINGS) as primary, fresh(primary) as first, Standby(primary, SETTINGS) as standby:
        report.on(first)
        both = make_conninfo(first, host=f"{standby.data},{primary.data}", port=f"{standby.port},{primary.port}")
        with Campaign(report, make_conninfo(both, target_session_attrs="read-write"), seed=seed, rate=rate) as field:
            field.work_on(30)
            name = field.audit.connection.info.dbname
            standby.promote()
            with (
                psycopg.connect(primary.dsn(name), autocommit=True) as old,
                psycopg.connect(standby.dsn(name), autocommit=True) as new,
            ):
                sides = {"the old one": old, "the new one": new}
                before, over = jobs(new, KNOWN), jobs(new, OVER)
                since = count(sides)
                time.sleep(seconds)
                stayed = count(sides, since)
                report.fact("while every session is open, jobs completed on", stayed)
                report.holds(
                    "processes with a session stay on the old server",
                    not stayed["the new one"] and stayed["the old one"],
                )
                old.execute(MOVE, [field.herds[0].pid, field.herds[0].pid])
                field.wait(
                    lambda: count(sides, since)["the new one"] > 0,
                    "the moved supervisor to complete jobs on the new server",
                )
                since = count(sides)
                time.sleep(seconds)
                report.fact("while each server has one supervisor, jobs completed on", count(sides, since))
                order(primary, "ALTER SYSTEM SET default_transaction_read_only = on")
                fenced = time.monotonic()
                field.audit.reconnect()
                field.work_on(5)
                report.fact(
                    "the old server was made read-only: 5 more jobs on the new one after",
                    f"{time.monotonic() - fenced:.1f} s",
                )
                field.wait(lambda: not jobs(old, LEFT), "all processes to move to the new server")
                report.fact("all processes had moved after", f"{time.monotonic() - fenced:.1f} s")
                came, ended = jobs(old, KNOWN) - before, jobs(old, OVER)
                report.fact(
                    "jobs enqueued on the old server since, unknown to the new one",
                    f"{len(came)}, {len(came & ended)} of them done",
                )
                field.finish(lost=True)
                report.fact(
                    "jobs that both servers had at the promotion and have finished since",
                    len((before - over) & ended & jobs(new, OVER)),
                )
            primary.kill()  # It accepts no writes, so the database cannot be dropped there.


def jobs(side: psycopg.Connection[tuple[int]], look: str) -> set[int]:
    return {number for (number,) in side.execute(look).fetchall()}


def count(sides: dict[str, psycopg.Connection[tuple[int]]], since: dict[str, int] | None = None) -> dict[str, int]:
    """How many jobs are completed on each server, in total or more than in `since`."""
    return {who: len(jobs(side, OVER)) - (since[who] if since else 0) for who, side in sides.items()}


def compare(
    report: Report, arrived: dict[int, int], done: dict[int, int], field: Campaign, *, known: set[int], received: int
) -> None:
    """Compare the missing jobs with what the standby had received."""
    late = {job for job, at in arrived.items() if at > received}
    missing = set(arrived) - known
    undone = {job for job, at in done.items() if at > received and job in known}
    report.fact("jobs enqueued after the last data that the standby received", f"{len(late)} of {len(arrived)}")
    report.fact("jobs finished after that data, known to the standby and so run again", len(undone))
    # The promoted server may have assigned a lost id again before this check.
    given_again = late & known
    report.holds(
        "every job enqueued after that data is lost, unless its id was assigned again",
        missing | given_again >= late,
        f"{len(given_again)} again",
    )
    # A row is written before its transaction commits: one transaction of each session can be on
    # either side of the position.
    report.holds("no other job is lost", len(missing - late) <= 2, sorted(missing - late)[:5] or "")


def detach(standby: Cluster) -> int:
    """End the standby's replication; return the WAL position up to which it has received."""
    order(standby, "ALTER SYSTEM SET primary_conninfo = ''")
    with psycopg.connect(standby.dsn(), autocommit=True) as look:
        while look.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() != (0,):
            time.sleep(0.05)
        row = look.execute("SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def order(cluster: Cluster, statement: str) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as owner:
        owner.execute(statement)
        owner.execute("SELECT pg_reload_conf()")


if __name__ == "__main__":
    sys.exit(main())
