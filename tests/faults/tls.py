"""Fork hundreds of child processes under a supervisor that uses TLS.

Its sessions survive every fork, and no two processes ever share one.

If a copy of a TLS session sent its close message or any record, it would end the supervisor's
session or make it unreadable. Needs a server with TLS: Debian's, by JOBHERD_TEST_PG=15.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.support.ground import arguments
from tests.support.herd import LIMIT, Herd, is_ready
from tests.support.secure import secured

HANDLERS = """
import os
from jobherd import handler

@handler("tls:who")
def who() -> int:
    return os.getpid()
"""
SESSIONS = """
SELECT a.pid, a.backend_start::text, a.application_name, s.ssl, a.client_port
  FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)
 WHERE a.application_name LIKE 'jobherd:%'
"""


def fork_often(dsn: str, folder: Path, *, forks: int, workers: int = 2) -> dict[str, Any]:
    """Fork `forks` child processes under one supervisor; return the counts. Raises AssertionError if a check fails."""
    (folder / "jobs.py").write_text(HANDLERS)
    with Herd(dsn, folder, workers=workers) as herd, psycopg.connect(dsn, autocommit=True) as connection:

        def parents() -> set[tuple[int, str]]:
            rows = connection.execute(SESSIONS).fetchall()
            assert all(row[3] for row in rows), "a session does not use TLS"
            assert len({row[4] for row in rows}) == len(rows), "two sessions share a connection"
            return {(row[0], row[1]) for row in rows if row[2].startswith("jobherd:supervisor:")}

        before = parents()
        assert before, "the supervisor has no sessions"
        born, killed, ran = workers, 0, 0
        while born < forks + workers:
            since = herd.mark()
            if born % 5 == 0:  # Every fifth round a worker dies at a random time and cannot close its session.
                os.kill(herd.worker_pids()[-1], signal.SIGKILL)
                killed += 1
                wanted = 1
            else:
                herd.signal(signal.SIGHUP)
                wanted = workers
            for _ in range(wanted):
                event = herd.wait_event(is_ready, since=since)
                since = herd.events.index(event) + 1
            born += wanted
            job = connection.execute("SELECT jobherd.enqueue('tls:who')").fetchone()
            assert job
            until = time.monotonic() + LIMIT
            while time.monotonic() < until and connection.execute(
                "SELECT state FROM jobherd.jobs WHERE id = %s", job
            ).fetchone() != ("completed",):
                connection.execute("SELECT pg_sleep(0.01)")
            assert time.monotonic() < until, f"job {job[0]} did not run"
            ran += 1
            assert parents() == before, "the supervisor lost a session after a fork"
        lost = [event.line for event in herd.events if "SSL" in event.line or "the database is back" in event.message]
        assert not lost, lost[:3]
        assert herd.stop() == 0
    return {"forks": born, "killed": killed, "jobs": ran, "sessions of the parent": len(before)}


def main() -> int:
    os.environ.setdefault("JOBHERD_TEST_PG", "15")
    given = arguments(__doc__, forks=300)
    with tempfile.TemporaryDirectory() as folder, secured() as (_, dsn):
        print(fork_often(dsn, Path(folder), forks=given.forks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
