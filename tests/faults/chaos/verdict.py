"""Checks the invariants after the storm, and measures how long recovery from each kind of fault took.

Reads the audit and changes no job.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.faults.chaos.storm import Event
    from tests.support.audit import Audit
    from tests.support.figures import Report

INSTALL = """
CREATE INDEX ON audit.steps (job, number);
CREATE INDEX ON audit.steps (child);
CREATE TABLE audit.effects (job bigint NOT NULL, attempt int NOT NULL);  -- deliberately without a key
CREATE TABLE audit.children (child bigint, pid int, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION audit.born() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.children (child, pid) VALUES (new.id, new.pid);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_children AFTER INSERT ON jobherd.children FOR EACH ROW EXECUTE FUNCTION audit.born();
CREATE TABLE audit.faults (number int, name text, pid int, at timestamptz);
CREATE TABLE audit.refusals (until timestamptz NOT NULL);
INSERT INTO audit.refusals VALUES ('-infinity');
CREATE FUNCTION audit.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT until > clock_timestamp() FROM audit.refusals) AND random() < 0.5 THEN RAISE serialization_failure; END IF;
    RETURN NULL;
END $$;
-- At the commit, when the statement has answered; as a serializable transaction is refused.
CREATE CONSTRAINT TRIGGER audit_refuse AFTER INSERT OR UPDATE OR DELETE ON jobherd.running INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION audit.refuse();
"""
OVER = "('completed', 'failed', 'cancelled', 'expired')"
TWICE = "SELECT job, count(*) FROM audit.steps WHERE step = 'completed' GROUP BY 1 HAVING count(*) > 1"
ILLEGAL = f"""
SELECT job, number, before, step, token_before, token FROM (
       SELECT job, number, step, token, attempts, lag(step) OVER each AS before, lag(token) OVER each AS token_before
         FROM audit.steps WINDOW each AS (PARTITION BY job ORDER BY number)) AS s
 WHERE (before IN {OVER} AND NOT (step = 'ready' AND attempts = 0))
    OR (before IS NULL AND step NOT IN ('ready', 'scheduled'))"""
BACKWARDS = """
SELECT job, number, token FROM (
       SELECT job, number, token, max(token) OVER (PARTITION BY job ORDER BY number ROWS UNBOUNDED PRECEDING EXCLUDE CURRENT ROW) AS highest
         FROM audit.steps WHERE step = 'claimed') AS s
 WHERE token < highest"""
RETRIED = f"""
SELECT DISTINCT job FROM (SELECT job, step, lag(step) OVER (PARTITION BY job ORDER BY number) AS before FROM audit.steps) AS s
 WHERE step = 'ready' AND before IN {OVER}"""
UNEXPLAINED = f"""
SELECT h.id, h.kind, h.attempts, h.crashes, a.counted, a.crashed
  FROM jobherd.history h CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE outcome NOT IN ('snoozed', 'abandoned')) AS counted, count(*) FILTER (WHERE error_code = 'WORKER_CRASHED') AS crashed
         FROM jobherd.attempts a WHERE a.job = h.id) AS a
 WHERE h.state = 'completed' AND (h.attempts <> a.counted + 1 OR h.crashes <> a.crashed) AND h.id NOT IN ({RETRIED})"""
TOO_OFTEN = """
SELECT h.id, h.kind, h.attempts, h.crashes FROM jobherd.history h JOIN jobherd.kinds k ON k.name = h.kind
 WHERE h.attempts > coalesce(h.max_attempts, k.max_attempts) OR h.crashes > k.max_crashes"""
WRONG = """
SELECT h.id, h.state, count(e.job) FROM jobherd.history h LEFT JOIN audit.effects e ON e.job = h.id
 WHERE h.kind IN ('chaos:effect', 'chaos:halfway')
 GROUP BY 1, 2 HAVING count(e.job) <> CASE h.state WHEN 'completed' THEN 1 ELSE 0 END"""
EFFECTS = "SELECT count(*) FROM audit.effects"
PREPARED = "SELECT gid, owner FROM pg_prepared_xacts"
IDLE = """
SELECT application_name, left(query, 60) FROM pg_stat_activity
 WHERE application_name LIKE 'jobherd%' AND state LIKE 'idle in transaction%' AND xact_start < clock_timestamp() - interval '2 s'"""
OURS = "c.relnamespace = 'jobherd'::regnamespace AND c.relpersistence = 'p'"
INDEXES = f"""
SELECT c.oid FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am a ON a.oid = c.relam
 WHERE {OURS} AND c.relkind = 'i' AND a.amname = 'btree' AND i.indisvalid"""
CORRUPT = f"""
SELECT c.relname, v.msg FROM pg_class c CROSS JOIN LATERAL verify_heapam(c.oid) AS v WHERE {OURS} AND c.relkind = 'r'"""
STEPS = "SELECT to_jsonb(s) FROM audit.steps s WHERE job = ANY (%s) ORDER BY job, number"
TRIES = "SELECT to_jsonb(a) FROM jobherd.attempts a WHERE job = ANY (%s) ORDER BY job, finished_at"
SESSIONS = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'jobherd%'"
RECOVERIES = f"""
WITH held AS (
    SELECT f.name, f.at, s.job, s.number FROM audit.faults f
      CROSS JOIN LATERAL (SELECT c.child FROM audit.children c WHERE c.pid = f.pid AND c.at < f.at ORDER BY c.at DESC LIMIT 1) AS c
      JOIN audit.steps s ON s.child = c.child AND s.step = 'claimed' AND s.at < f.at
), next AS (
    SELECT h.name, h.at, n.at AS moved, n.step, n.token
      FROM held h CROSS JOIN LATERAL (SELECT * FROM audit.steps s WHERE s.job = h.job AND s.number > h.number ORDER BY s.number LIMIT 1) AS n
)
SELECT name, extract(epoch FROM moved - at)::double precision * 1000 FROM next WHERE moved > at AND step NOT IN {OVER}"""
MOST_SHOWN = 200
EACH, SPARE = 4, 8
"""Additional open files that a supervisor may have: for each additional child process, and as a reserve."""
RESUMED = "SELECT extract(epoch FROM min(at))::double precision FROM audit.steps WHERE step = 'claimed' AND at > to_timestamp(%s)"


def recoveries(audit: Audit, events: Iterable[Event], started: Iterable[float]) -> dict[str, list[float]]:
    """Return recovery times in milliseconds by kind of fault.

    After a death: until the process's claimed jobs could be claimed again. After a start of the server:
    until the next claim.
    """
    with audit.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO audit.faults VALUES (%s, %s, %s, to_timestamp(%s))",
            [(event.number, event.name, pid, event.at) for event in events for pid in event.pids],
        )
    found: dict[str, list[float]] = {}
    for name, took in audit.run(RECOVERIES):
        found.setdefault(f"{name}: its jobs ready again", []).append(took)
    again = [(row[0] - at) * 1000 for at in started for row in audit.run(RESUMED, at) if row[0] is not None]
    if again:
        found["the server is there again: the next claim"] = again
    return found


def judge(report: Report, audit: Audit, acknowledged: Sequence[int], notes: Path, *, over: bool) -> set[int]:
    """Check every invariant, one line of the report each; return the jobs that break one."""

    concerned: set[int] = set()

    def none(invariant: str, rows: Sequence[Any]) -> None:
        report.holds(invariant, not rows, rows[:5] if rows else "")
        firsts = [row[0] if isinstance(row, tuple) else row for row in rows[:MOST_SHOWN]]
        concerned.update(first for first in firsts if isinstance(first, int))

    rows = audit.run(f"SELECT job, step FROM audit.steps WHERE step IN {OVER}")
    ended = {job for job, _ in rows}
    none(f"no job lost of {len(acknowledged):,} acknowledged jobs", sorted(set(acknowledged) - ended))
    report.fact("ends", dict(Counter(step for _, step in rows)))
    none("no job completed twice", audit.run(TWICE))
    none("no job leaves a final state except by a retry, and every job starts in a first state", audit.run(ILLEGAL))
    none("no token is smaller than an earlier one of its job", audit.run(BACKWARDS))
    none("writes of a job's transaction exist once if the job completed, otherwise not", audit.run(WRONG))
    none("every counted attempt and every crash is explained in the history of its job", audit.run(UNEXPLAINED))
    none("no job has more attempts or crashes than allowed", audit.run(TOO_OFTEN))
    report.holds("every job is finished at the end", over and not audit.waiting(), audit.waiting() or "")
    none("no session is left on the server", audit.run(SESSIONS))
    none("no prepared transaction is left on the server", audit.run(PREPARED))
    _judge_notes(report, audit, notes)
    return concerned


def judge_rest(report: Report, audit: Audit, *, base: tuple[int, int], now: Sequence[tuple[int, int]]) -> None:
    """Check the running supervisors after the last fault.

    Args:
        base: Open files and child processes of a supervisor that had just started.
        now: Open files and child processes of each supervisor.
    """
    idle = audit.run(IDLE)
    report.holds("no session of Jobherd is idle in a transaction", not idle, idle[:5] if idle else "")
    over = [(files, children) for files, children in now if files > base[0] + EACH * max(0, children - base[1]) + SPARE]
    report.holds(
        "no supervisor has more open files than at its start",
        not over,
        f"{now}, {base} at first, with so many children",
    )


def judge_pages(report: Report, audit: Audit) -> None:
    """Check every index and table for corruption, if the server has amcheck."""
    if not audit.run("SELECT name FROM pg_available_extensions WHERE name = 'amcheck'"):
        report.fact("amcheck", "this server has none")
        return
    audit.run("CREATE EXTENSION IF NOT EXISTS amcheck")
    wrong = audit.run(CORRUPT)
    for (index,) in audit.run(INDEXES):
        try:
            audit.run("SELECT bt_index_check(%s::oid, true)", index)
        except psycopg.errors.IndexCorrupted as problem:
            wrong.append((index, str(problem)))
    report.holds("no page of a table or an index is damaged", not wrong, wrong[:5] if wrong else "")


def dump(audit: Audit, jobs: set[int], path: Path) -> None:
    """Write the audit's steps and the attempts of these jobs to a file, one per line."""
    with path.open("w") as file:
        for statement in (STEPS, TRIES):
            file.writelines(json.dumps(row, default=str) + "\n" for (row,) in audit.run(statement, sorted(jobs)))


def _judge_notes(report: Report, audit: Audit, notes: Path) -> None:
    """Check what handlers did outside the database.

    Each completed job has done its work, and two runs of a job overlap only if a lease was lost.
    """
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    ran = Counter(int(job) for what, job, *_ in lines if what == "end")
    noted = audit.run(
        "SELECT id FROM jobherd.history WHERE state = 'completed' AND kind IN"
        " ('chaos:line', 'chaos:burn', 'chaos:capped', 'chaos:exclusive', 'chaos:brittle')"
    )
    missing = [job for (job,) in noted if not ran[job]]
    report.holds(
        "every completed job has done its work outside the database", not missing, missing[:5] if missing else ""
    )
    repeated = sum(times > 1 for times in ran.values())
    overlapped = sorted({int(job) for what, job, *_ in lines if what == "overlap"})
    lost = {row[0] for row in audit.run("SELECT DISTINCT job FROM jobherd.attempts WHERE outcome = 'lost'")}
    unexcused = [job for job in overlapped if job not in lost]
    report.fact(
        "jobs that repeated work outside the database, in part or completely",
        f"{repeated} of {len(ran)} jobs; {len(overlapped)} overlapped after a lost lease",
    )
    report.holds(
        "two attempts of a job overlap only if a lease was lost in between",
        not unexcused,
        unexcused[:5] if unexcused else "",
    )
