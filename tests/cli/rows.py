"""Rows that a supervisor would have written, back-dated if a test needs it."""

from __future__ import annotations

import psycopg


def send(dsn: str, text: str, *values: object) -> list[tuple]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(text, values)
        return cursor.fetchall() if cursor.description else []


def past(
    dsn: str,
    state: str,
    *,
    kind: str = "mail:receipt",
    queue: str = "default",
    days: float = 0,
    many: int = 1,
    error: str | None = None,
) -> int:
    """Insert jobs that ended this many days ago. Return the id of the last."""
    rows = send(
        dsn,
        """INSERT INTO jobherd.history (id, created_at, run_at, started_at, finished_at, drop_on, token, priority, attempts, crashes, state,
                                        queue, kind, payload, error_code, error, ran_on, result)
           SELECT nextval('jobherd.job_ids'), t, t, t, t + interval '1 second', current_date + 30, nextval('jobherd.tokens'), 0, 1, 0, %s, %s,
                  %s, '{"order_id": 7}', CASE WHEN %s = 'completed' THEN NULL ELSE 'BOOM' END, %s, 'alpha/77', '{"sent": true}'
             FROM generate_series(1, %s) AS n,
                  LATERAL (SELECT clock_timestamp() - make_interval(days => 0, secs => %s * 86400.0) + n * interval '1 ms' AS t) AS times
           RETURNING id""",
        state, queue, kind, state, error or ("it broke" if state == "failed" else None), many, days,
    )  # fmt: skip
    return max(row[0] for row in rows)


def supervisor(dsn: str, *, host: str = "alpha", lease: float = 600) -> int:
    """Insert a supervisor whose lease expires in `lease` seconds: longer than a slow test, or negative for expired."""
    return send(
        dsn,
        """INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, lease_until)
           VALUES (%s, 'here', 77, 1, '0.1.0', clock_timestamp() + make_interval(secs => %s)) RETURNING id""",
        host, lease,
    )[0][0]  # fmt: skip


def child(dsn: str, supervisor_id: int, *, slot: int = 1) -> int:
    return send(
        dsn,
        """INSERT INTO jobherd.children (supervisor, incarnation, slot, kind, pid, pid_started, backend_started)
           VALUES (%s, %s, %s, 'worker', 78, 1, now()) RETURNING id""",
        supervisor_id, slot, slot,
    )[0][0]  # fmt: skip


def claim(dsn: str, child_id: int) -> int:
    """Claim the first ready job for this child process. Return the job's id."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(
            """WITH taken AS (DELETE FROM jobherd.ready r WHERE id = (SELECT min(id) FROM jobherd.ready) RETURNING r)
               INSERT INTO jobherd.running (child, token, queue, jobs) SELECT %s, nextval('jobherd.tokens'), (r).queue, ARRAY[r] FROM taken
               RETURNING jobs[1].id""",
            (child_id,),
        ).fetchone()[0]


def remote_worker(dsn: str, via: int, *, name: str = "gpu-1", lease: float = 600, ago: float = 0) -> int:
    """Insert a remote worker of this supervisor, with a lease renewed `ago` seconds ago. Return its child id."""
    return send(
        dsn,
        """WITH session AS (
               INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, via, attached, principal, beat_at, lease_until)
               SELECT %s, 'remote', 0, 0, 'node/1.2', %s, 1, 'team-a', at, at + make_interval(secs => %s)
                 FROM (SELECT clock_timestamp() - make_interval(secs => %s) AS at) AS renewed RETURNING id)
           INSERT INTO jobherd.children (supervisor, incarnation, slot, kind, pid, pid_started, backend_pid, backend_started)
           SELECT id, 1, 0, 'remote', 0, 0, 0, now() FROM session RETURNING id""",
        name, via, lease, ago,
    )[0][0]  # fmt: skip
