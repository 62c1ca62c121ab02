"""Test the restrictions of managed PostgreSQL one after another, on a local server.

Each row has a name, what the administrator does to the database and the role, and what `jobherd
doctor` must name. Two supervisors work as the role, one of their workers is killed with SIGKILL, and
nothing may be lost. The page docs/how-to/operate/managed-postgresql.md lists the same restrictions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import make_conninfo

from jobherd import sql
from jobherd.sql.migrate import migrate
from tests.faults.campaign import Campaign
from tests.support.checkout import ROOT, import_path
from tests.support.figures import Report
from tests.support.ground import AHEAD, SETTINGS, arguments
from tests.support.postgres import Cluster

AUDITED = ("waiting", "claimed", "ended")


@dataclass(frozen=True)
class Row:
    """A restriction: statements of the administrator before the start, in which {app} is the login role."""

    name: str
    setup: tuple[str, ...]
    doctor: str = ""
    """Text that the output of `jobherd doctor` must contain, if any."""
    owner: bool = True
    """The role owns the schema. Otherwise an administrator does, and the role is a member of Jobherd's group roles."""


OWN = ("CREATE ROLE {app} LOGIN", "CREATE SCHEMA jobherd AUTHORIZATION {app}")
ROWS = (
    Row("no superuser, must not create roles or schemas, the schema was made beforehand", OWN, "jobherd_read"),
    Row(
        "a login role that becomes another role",
        (
            "CREATE ROLE {app}_boss",
            "CREATE ROLE {app} LOGIN IN ROLE {app}_boss",
            "ALTER ROLE {app} SET role = '{app}_boss'",
            "CREATE SCHEMA jobherd AUTHORIZATION {app}_boss",
        ),
    ),
    Row(
        "limits and a search_path of the role",
        (
            *OWN,
            "ALTER ROLE {app} SET statement_timeout = '2s'",
            "ALTER ROLE {app} SET idle_session_timeout = '6s'",
            "ALTER ROLE {app} SET idle_in_transaction_session_timeout = '3s'",
            "ALTER ROLE {app} SET lock_timeout = '2s'",
            "ALTER ROLE {app} SET search_path = nowhere",
        ),
        "statement_timeout",
    ),
    Row(
        "pg_terminate_backend is revoked",
        (*OWN, "REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC"),
        "pg_terminate_backend",
    ),
    Row("a member of jobherd_work and jobherd_enqueue, not the owner", ("CREATE ROLE {app} LOGIN",), owner=False),
)


def main() -> int:
    given = arguments(__doc__, rate=40.0, only=0)
    report = Report(f"managed: {len(ROWS)} restrictions of managed PostgreSQL", given.seed)
    with Cluster({**SETTINGS}) as cluster:
        for number, row in enumerate(ROWS, 1):
            if given.only in (0, number):
                with cluster.database() as dsn:
                    report.on(dsn)
                    report.fact(f"{number}", row.name)
                    once(report, row, dsn, f"app{number}", given.seed + number, rate=given.rate)
    return report.end()


def once(report: Report, row: Row, dsn: str, app: str, seed: int, *, rate: float) -> None:
    login = make_conninfo(dsn, user=app)
    with psycopg.connect(dsn, autocommit=True) as administrator:
        for statement in row.setup:
            administrator.execute(statement.format(app=app))
        with psycopg.connect(login if row.owner else dsn, autocommit=True) as owner:
            migrate(owner)
            owner.execute("SET statement_timeout = 0")
            owner.execute(sql.load("maintenance/keep_partitions"), {"ahead": AHEAD, "most": None})
        if not row.owner:
            administrator.execute(f"GRANT jobherd_work, jobherd_enqueue TO {app}")
    field = Campaign(report, dsn, seed=seed, rate=rate, through=login)
    for name in AUDITED:  # The role has write access to the queue, but not to the audit.
        field.audit.run(f"ALTER FUNCTION audit.{name}() SECURITY DEFINER")
    with field:
        field.work_on(20)
        os.kill(field.herds[0].worker_pids()[0], signal.SIGKILL)
        field.work_on(40)
        said = doctor(login)
        named = row.doctor in said
        report.holds(
            f"doctor names {row.doctor!r}" if row.doctor else "doctor answers", named and said, "" if named else said
        )
        field.finish(same=False)


def doctor(dsn: str) -> str:
    """Run `jobherd doctor` as this role; return its output."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jobherd.supervisor", "doctor"],
        env={**os.environ, "JOBHERD_DSN": dsn, "PYTHONPATH": import_path(ROOT)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
