"""The truth about jobs, kept apart from the queue.

Triggers that write down each step a job takes, and tell a listener after the commit.

`completed` and the other terminal states come from inserts into history, `ready` and `scheduled`
from jobs put (back) there, `claimed` from running. A job that was acknowledged to a producer and
has no terminal step at the end is lost; one with two was ended twice.
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
    -- Named by the step and not by the job: a job may come back twice before anybody has heard of the first time.
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
"""In one statement, so in one snapshot.

A job that moves from one table to the other between two would be in none.
"""


class Audit:
    """The audit of one database.

    Made before any supervisor runs on it: its triggers lock the tables that a maintenance process works on.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(INSTALL)

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def reconnect(self, limit: float = 120.0) -> None:
        """After the server was away, or while it still is: once it answers."""
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
        """How many jobs are not over."""
        return self.run(WAITING)[0][0]  # type: ignore[no-any-return]

    def wait_all_over(self, timeout: float = 120.0) -> bool:
        """Wait until no job waits or runs.

        On each ended job's notification, with a look each second.
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
        """The invariants of every fault.

        Nothing lost, nothing ended twice, counts that agree with the recorded attempts.
        """
        acknowledged = set(acknowledged)
        rows = self.run(
            "SELECT job, step FROM audit.steps WHERE step IN ('completed', 'failed', 'cancelled', 'expired')"
        )
        ended = Counter(job for job, _ in rows)
        lost = sorted(acknowledged - set(ended))
        report.holds(f"nothing lost of {len(acknowledged)} acknowledged jobs", not lost, lost[:10] if lost else "")
        twice = [job for job, times in ended.items() if times > 1]
        report.holds("nothing ended twice", not twice, twice[:10] if twice else dict(Counter(step for _, step in rows)))
        left = self.waiting()
        report.holds("no job waits or runs at the end", not left, left or "")
        rows = self.run(
            """SELECT h.id, h.attempts, h.crashes, a.counted, a.crashed
                 FROM jobherd.history h CROSS JOIN LATERAL (
                      SELECT count(*) FILTER (WHERE outcome NOT IN ('snoozed', 'abandoned')) AS counted,
                             count(*) FILTER (WHERE error_code = 'WORKER_CRASHED') AS crashed
                        FROM jobherd.attempts a WHERE a.job = h.id) AS a
                WHERE h.state = 'completed' AND (h.attempts <> a.counted + 1 OR h.crashes <> a.crashed)"""
        )
        report.holds("every counted attempt is in the history of attempts", not rows, rows[:5] if rows else "")


def read_ids(path: Path) -> list[int]:
    """What a producer has written down; a torn last line does not count."""
    text = path.read_text(encoding="ascii")
    return [int(line) for line in text[: text.rfind("\n") + 1].split()]
