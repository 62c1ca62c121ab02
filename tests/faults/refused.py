"""Make the server reject every login, in six ways, under load.

No connection is available, the role has reached its limit, the role may not log in, its password was
changed, the database accepts no connections, or the database was renamed.

Each lasts for 10 s by default (`--away`). The server's log shows that no process retries without a
backoff. Each supervisor and its child processes log at most 30 lines. Jobs continue within 2 s of the
end of the fault.

Every process has its session again within the same time. The exception is the role's limit, which
allows a few sessions: then no first answer after an outage ends the backoff of the other processes,
and each reconnects after its own backoff, within `db_retry_max`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.campaign import Campaign
from tests.support.figures import Report
from tests.support.ground import SETTINGS, arguments, fresh
from tests.support.postgres import USER, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 60
FEW = 3
"""The role's limit of sessions.

Some processes of a supervisor have one, and others have none.
"""
AIM_MS = 2000.0
LIMITED = "the role has all the sessions that it may"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'worker' AND application_name LIKE 'jobherd:%%:%%'"


def main() -> int:
    given = arguments(__doc__, away=10.0, rate=40.0)
    report = Report(f"refused: six ways to be let in no more, each for {given.away:g} s", given.seed)
    with (
        Cluster({**SETTINGS, "max_connections": str(MOST), "log_connections": "off"}) as cluster,
        fresh(cluster) as dsn,
    ):
        report.on(dsn)
        name = str(conninfo_to_dict(dsn)["dbname"])
        owner = psycopg.connect(cluster.dsn(), autocommit=True)
        # It owns all that its group owns, and is not a superuser: no limit applies to superusers.
        owner.execute(f"CREATE ROLE worker LOGIN PASSWORD 'first' IN ROLE {USER}")
        hba = cluster.data / "pg_hba.conf"
        trust = hba.read_text()
        hba.write_text("local all worker scram-sha-256\n" + trust)
        owner.execute("SELECT pg_reload_conf()")
        ours = make_conninfo(dsn, user="worker", password="first")
        faults: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "no connection left": lambda: crowd(cluster, owner),
            LIMITED: lambda: between(
                owner, f"ALTER ROLE worker CONNECTION LIMIT {FEW}", "ALTER ROLE worker CONNECTION LIMIT -1"
            ),
            "the role may not log in": lambda: between(owner, "ALTER ROLE worker NOLOGIN", "ALTER ROLE worker LOGIN"),
            "the password was changed": lambda: between(
                owner, "ALTER ROLE worker PASSWORD 'second'", "ALTER ROLE worker PASSWORD 'first'"
            ),
            "the database takes no connections": lambda: between(
                owner, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"
            ),
            "the database was renamed": lambda: between(
                owner,
                f"ALTER DATABASE {name} RENAME TO elsewhere",
                f"ALTER DATABASE elsewhere RENAME TO {name}",
                first=end_all(name),
            ),
        }
        jobs, sessions = [], []
        with Campaign(report, dsn, through=ours, seed=given.seed, rate=given.rate) as field:
            everybody = field.audit.run(SESSIONS)
            for what, fault in faults.items():
                field.work_on(20)
                lines, size = [herd.mark() for herd in field.herds], cluster.log.stat().st_size
                with fault():
                    if what != "the database was renamed":
                        owner.execute(END)
                    time.sleep(given.away)
                    tries = cluster.log.read_bytes()[size:].count(b"FATAL")
                relieved = time.monotonic()
                field.audit.reconnect()
                field.work_on(5)
                jobs.append(1000 * (time.monotonic() - relieved))
                field.wait(lambda: field.audit.run(SESSIONS) >= everybody, "a session for every process")
                everybody_in = 1000 * (time.monotonic() - relieved)
                if what != LIMITED:
                    sessions.append(everybody_in)
                said = [herd.mark() - mark for herd, mark in zip(field.herds, lines, strict=True)]
                report.fact(
                    what,
                    f"refused {tries} times in {given.away:g} s; {jobs[-1]:.0f} ms to 5 more jobs, {everybody_in:.0f} ms to all sessions; lines a supervisor: {said}",
                )
                # Allowed: two supervisors once a second, a producer five times a second, six child
                # processes with a backoff that doubles, and the sessions that were ended.
                report.holds(f"{what}: no process retries without a pause", tries <= 30 + 12 * given.away, tries)
                report.holds(f"{what}: few log lines", max(said) <= 30, said)
                words = [
                    event.line for herd, mark in zip(field.herds, lines, strict=True) for event in herd.events[mark:]
                ]
                report.holds(
                    f"{what}: no secret in them", not any("first" in line and "password=" in line for line in words)
                )
            report.spread("relief to 5 more jobs", jobs, aims={"max": AIM_MS})
            report.spread("relief to a session for every process", sessions, aims={"max": AIM_MS})
            field.finish()
            bad = field.audit.run(
                "SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed' OR attempts > 1"
            )
            report.holds("every job completed in its first attempt", not bad, bad[:5] if bad else "")
        owner.close()
    return report.end()


@contextlib.contextmanager
def between(owner: psycopg.Connection[object], begin: str, end: str, *, first: str = "") -> Iterator[None]:
    until = time.monotonic() + 60
    while True:
        if first:
            owner.execute(first)
        try:
            owner.execute(begin)
        except psycopg.errors.ObjectInUse:  # A process has reconnected in between.
            assert time.monotonic() < until, "the database never was without connections for 60 s"
            continue
        break
    try:
        yield
    finally:
        owner.execute(end)


def end_all(name: str) -> str:
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"


@contextlib.contextmanager
def crowd(cluster: Cluster, owner: psycopg.Connection[object]) -> Iterator[None]:
    """Use all connections of the server until the end of the block."""
    owner.execute(END)
    taken: list[psycopg.Connection[object]] = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            taken.append(psycopg.connect(cluster.dsn(), autocommit=True))
        except psycopg.OperationalError:
            owner.execute(END)
            if len(taken) >= MOST - 3:
                break
    try:
        yield
    finally:
        for one in taken:
            one.close()


if __name__ == "__main__":
    sys.exit(main())
