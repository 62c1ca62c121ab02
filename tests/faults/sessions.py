"""End random sessions, under time limits on the database and with rejected statements.

Nothing is lost and nothing ends twice.

First a hundred completions in a row are rejected, as by a limit on statements or on locks. Each is
written nevertheless, no job runs again, and no job waits for a lease to expire. Then the campaign
ends a random session of Jobherd five times a second (pg_terminate_backend). The database has limits
for statements, locks, idle sessions and transactions that would break everything that takes longer.
Every ninth statement of Jobherd that changes `running`, the supervisors or the history is rejected
as a deadlock, a serialization failure or a lock timeout: at once, or at the commit, after the answer.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from tests.faults.campaign import QUICK, Campaign
from tests.faults.runs import begun_twice, read_runs
from tests.support.figures import Report
from tests.support.ground import arguments, ground

OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'jobherd:%' ORDER BY pid"
REFUSE = """
CREATE SEQUENCE audit.turns;
CREATE SEQUENCE audit.refused;
CREATE FUNCTION audit.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    turn bigint := nextval('audit.turns');
BEGIN
    IF current_setting('application_name') LIKE 'jobherd:%%' AND turn %% {every} = 0 THEN
        PERFORM nextval('audit.refused');
        RAISE EXCEPTION 'refused by the campaign' USING ERRCODE = (ARRAY['40001', '40P01', '55P03'])[1 + (turn / {every}) %% 3];
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse AFTER INSERT OR DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION audit.refuse();
CREATE TRIGGER refuse AFTER INSERT ON jobherd.history FOR EACH STATEMENT EXECUTE FUNCTION audit.refuse();
CREATE TRIGGER refuse AFTER UPDATE ON jobherd.supervisors FOR EACH STATEMENT EXECUTE FUNCTION audit.refuse();
CREATE CONSTRAINT TRIGGER refuse_late AFTER INSERT OR UPDATE OR DELETE ON jobherd.running INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit.refuse();
"""
ROW = """
CREATE SEQUENCE audit.rows;
CREATE FUNCTION audit.refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    turn bigint := nextval('audit.rows');
BEGIN
    IF turn <= {times} THEN RAISE EXCEPTION 'refused by the campaign' USING ERRCODE = (ARRAY['57014', '55P03'])[1 + turn % 2]; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refuse_row BEFORE INSERT ON jobherd.history FOR EACH STATEMENT EXECUTE FUNCTION audit.refuse_row();
"""
LEASE = 600.0
"""Seconds, long enough that the campaign fails if a job waits for a lease to expire."""
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")


def main() -> int:
    given = arguments(__doc__, row=100, ends=100, rate=60.0, gap=0.2, every=9, limit=300)
    dice = random.Random(given.seed)
    report = Report(
        f"sessions: {given.ends} sessions ended, one statement in {given.every} refused, limits of {given.limit} ms",
        given.seed,
    )
    with ground() as (_, dsn), tempfile.TemporaryDirectory(prefix="jobherd-sessions-") as folder:
        report.on(dsn)
        runs = Path(folder, "runs")
        runs.touch()
        kinds = [
            ("fault:noted", {"path": str(runs), "seconds": seconds}, weight)
            for seconds, weight in ((0.0, 50.0), (0.02, 40.0), (0.5, 10.0))
        ]
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(dsn, autocommit=True) as owner:
            for limit in LIMITS:
                owner.execute(f"ALTER DATABASE {name} SET {limit} = '{given.limit}ms'")
            if owner.info.server_version >= 170000:
                owner.execute(f"ALTER DATABASE {name} SET transaction_timeout = '{given.limit}ms'")
        with_own = psycopg.conninfo.make_conninfo(
            dsn, options=" ".join(f"-c {limit}=0" for limit in (*LIMITS, "transaction_timeout"))
        )
        with Campaign(
            report,
            with_own,
            through=dsn,
            seed=given.seed,
            rate=given.rate,
            kinds=kinds,
            words=(*QUICK, "--db-retry-max", "2s", "--lease", f"{LEASE:g}s"),
        ) as field:
            in_a_row(report, field, given.row)
            field.audit.run(REFUSE.format(every=given.every).replace("%%", "%"))
            ended = 0
            while ended < given.ends:
                time.sleep(dice.uniform(0.5, 1.5) * given.gap)
                pids = [row[0] for row in field.audit.run(OURS)]
                if pids:
                    field.audit.run("SELECT pg_terminate_backend(%s)", dice.choice(pids))
                    ended += 1
            refused = field.audit.run("SELECT last_value FROM audit.refused")[0][0]
            field.audit.run("DROP FUNCTION audit.refuse() CASCADE")
            took = field.work_on()
            report.fact("sessions ended", ended)
            report.fact("statements refused as deadlock, serialization failure or lock timeout", refused)
            report.fact("seconds to 20 more jobs afterwards", f"{took:.1f}")
            field.finish()
            bad = field.audit.run(
                "SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed' OR attempts > 1"
            )
            report.holds("every job completed in its first attempt", not bad, bad[:5] if bad else "")
            again = begun_twice(read_runs(runs))
            report.holds("no job began twice", not again, again[:5] if again else "")
    return report.end()


def in_a_row(report: Report, field: Campaign, times: int) -> None:
    """Reject `times` completions in a row, whichever process writes them."""
    field.work_on()
    field.audit.run(ROW.format(times=times).replace("%%", "%"))
    begun = time.monotonic()
    field.wait(
        lambda: field.audit.run("SELECT last_value FROM audit.rows")[0][0] >= times, f"{times} refusals", LEASE / 2
    )
    refused = time.monotonic()
    running = [row[0] for row in field.audit.run("SELECT j.id FROM jobherd.running r, unnest(r.jobs) AS j")]
    over = "SELECT count(DISTINCT job) FROM audit.steps WHERE step = 'completed' AND job = ANY (%s)"
    field.wait(
        lambda: field.audit.run(over, running)[0][0] == len(set(running)),
        "the jobs whose completion was refused",
        LEASE / 2,
    )
    report.fact(
        f"{times} completions refused in a row",
        f"in {refused - begun:.1f} s; {len(running)} jobs ran at the last, {time.monotonic() - refused:.1f} s to the last of these",
    )
    again = field.audit.run("SELECT id FROM jobherd.history WHERE attempts > 1 OR state <> 'completed'")
    report.holds("no job whose completion was refused has run again", not again, again[:5] or "")
    field.audit.run("DROP FUNCTION audit.refuse_row() CASCADE")


if __name__ == "__main__":
    sys.exit(main())
