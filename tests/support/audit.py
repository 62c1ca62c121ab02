"""Records each step of each job in separate tables, and checks that no job is lost or finished twice.

Triggers record the steps and notify a listener after the commit.

Inserts into `history` record `completed` and the other final states, inserts into `ready` and
`scheduled` these states, and inserts into `running` the step `claimed`. A job that was acknowledged
to a producer but has no final state at the end is lost; a job with two has finished twice.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.figures import Report

INSTALL = """
CREATE SCHEMA audit;
CREATE TABLE audit.steps (
    number bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job bigint NOT NULL, step text NOT NULL, token bigint, attempts int NOT NULL, child bigint);
CREATE FUNCTION audit.waiting() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    step_number bigint;
BEGIN
    INSERT INTO audit.steps (job, step, attempts) VALUES (new.id, tg_table_name, new.attempts) RETURNING number INTO step_number;
    -- Notify the number of the step and not the job's id: a job may return twice before a listener reads the first one.
    IF new.crashes > 0 OR new.attempts > 0 THEN PERFORM pg_notify('audit_back', step_number::text); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_ready AFTER INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION audit.waiting();
CREATE TRIGGER audit_scheduled AFTER INSERT ON jobherd.scheduled FOR EACH ROW EXECUTE FUNCTION audit.waiting();
CREATE FUNCTION audit.claimed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.steps (job, step, token, attempts, child) SELECT j.id, 'claimed', new.token, j.attempts, new.child FROM unnest(new.jobs) AS j;
    RETURN NULL;
END $$;
CREATE TRIGGER audit_running AFTER INSERT ON jobherd.running FOR EACH ROW EXECUTE FUNCTION audit.claimed();
CREATE FUNCTION audit.ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.steps (job, step, token, attempts) VALUES (new.id, new.state, new.token, new.attempts);
    PERFORM pg_notify('audit_end', new.id || ' ' || new.state);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_history AFTER INSERT ON jobherd.history FOR EACH ROW EXECUTE FUNCTION audit.ended();
"""

WAITING = """
SELECT (SELECT count(*) FROM jobherd.waiting) + (SELECT count(*) FROM jobherd.scheduled)
     + (SELECT count(*) FROM jobherd.blocked) + (SELECT coalesce(sum(cardinality(jobs)), 0) FROM jobherd.running)"""
"""One statement, so one snapshot. Two statements would miss a job that moves between tables in between."""


class Audit:
    """The audit of one database.

    Create it before a supervisor runs there: creating the triggers locks tables that the maintenance process uses.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(INSTALL)

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def reconnect(self, limit: float = 120.0) -> None:
        """Connect again, as soon as the server answers."""
        self.connection.close()
        until = time.monotonic() + limit
        while True:
            try:
                self.connection = psycopg.connect(self.dsn, autocommit=True)
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def close(self) -> None:
        self.connection.close()

    def waiting(self) -> int:
        """Return the number of jobs that are not finished."""
        return self.run(WAITING)[0][0]  # type: ignore[no-any-return]

    def wait_all_over(self, timeout: float = 120.0) -> bool:
        """Wait until all jobs are finished; return whether they are.

        It counts the jobs after each notification of a finished job, and once a second.
        """
        until = time.monotonic() + timeout
        with psycopg.connect(self.dsn, autocommit=True) as listener:
            listener.execute("LISTEN audit_end")
            while time.monotonic() < until:
                if not self.waiting():
                    return True
                select.select([listener], [], [], 1.0)
                for _ in listener.notifies(timeout=0.2):
                    pass
        return False

    def check(self, report: Report, acknowledged: Iterable[int]) -> None:
        """Report the invariants that hold after every fault.

        No job is lost, none has finished twice, and counters match the recorded attempts.
        """
        acknowledged = set(acknowledged)
        rows = self.run(
            "SELECT job, step FROM audit.steps WHERE step IN ('completed', 'failed', 'cancelled', 'expired')"
        )
        ended = Counter(job for job, _ in rows)
        lost = sorted(acknowledged - set(ended))
        report.holds(f"no job lost of {len(acknowledged)} acknowledged jobs", not lost, lost[:10] if lost else "")
        twice = [job for job, times in ended.items() if times > 1]
        report.holds(
            "no job finished twice", not twice, twice[:10] if twice else dict(Counter(step for _, step in rows))
        )
        left = self.waiting()
        report.holds("every job is finished at the end", not left, left or "")
        rows = self.run(
            """SELECT h.id, h.attempts, h.crashes, a.counted, a.crashed
                 FROM jobherd.history h CROSS JOIN LATERAL (
                      SELECT count(*) FILTER (WHERE outcome NOT IN ('snoozed', 'abandoned')) AS counted,
                             count(*) FILTER (WHERE error_code = 'WORKER_CRASHED') AS crashed
                        FROM jobherd.attempts a WHERE a.job = h.id) AS a
                WHERE h.state = 'completed' AND (h.attempts <> a.counted + 1 OR h.crashes <> a.crashed)"""
        )
        report.holds("every counted attempt is in jobherd.attempts", not rows, rows[:5] if rows else "")


def read_ids(path: Path) -> list[int]:
    """Return the ids in a producer's file, without an incomplete last line."""
    text = path.read_text(encoding="ascii")
    return [int(line) for line in text[: text.rfind("\n") + 1].split()]
