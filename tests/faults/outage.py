"""Stop PostgreSQL for a minute under two supervisors and a job that computes for longer than that.

The same processes continue, each within 5 s of the server's start. The long job finishes once and
its outcome is written. While the server is down, each supervisor logs at most three lines per
process and no traceback. Nothing is lost and nothing ends twice.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [("fault:quick", {}, 50), ("fault:sleep", {"seconds": 0.02}, 40), ("fault:sleep", {"seconds": 0.5}, 10)]
STARTED = """
SELECT DISTINCT ON (ran_on) split_part(ran_on, '/', 2)::int, extract(epoch FROM started_at)::double precision
  FROM jobherd.history WHERE started_at > to_timestamp(%s) ORDER BY ran_on, started_at"""


def main() -> int:
    given = arguments(__doc__, away=60.0, long=90.0, workers=2, rate=30.0, immediate=0)
    random.seed(given.seed)
    mode = "immediate" if given.immediate else "fast"
    report = Report(
        f"outage: PostgreSQL stopped ({mode}) for {given.away:g} s, a job that computes for {given.long:g} s",
        given.seed,
    )
    with tempfile.TemporaryDirectory() as folder, ground() as (cluster, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        with Herd(dsn, WORK, workers=given.workers) as one, Herd(dsn, WORK, workers=given.workers) as two:
            with Producer(dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS) as producer:
                (long_job,) = audit.run("SELECT jobherd.enqueue('fault:burn', %s)", f'{{"seconds": {given.long}}}')[0]
                time.sleep(max(2.0, min(10.0, given.long - given.away - 15)))
                before = [one.children(), two.children()]
                (holder,) = audit.run(
                    "SELECT c.pid FROM jobherd.running r JOIN jobherd.children c ON c.id = r.child WHERE r.jobs[1].id = %s",
                    long_job,
                )[0]
                marks = [one.mark(), two.mark()]
                cluster.stop(mode)
                time.sleep(given.away)
                lines_away = [one.mark() - marks[0], two.mark() - marks[1]]
                started = time.time()
                cluster.start()
                took = time.time() - started
                started = time.time()
                audit.reconnect()
                everyone = {pid for herd in (one, two) for pid in herd.worker_pids()} - {holder}
                back: dict[int, float] = {}
                until = time.monotonic() + 30
                while time.monotonic() < until and set(back) < everyone:
                    time.sleep(0.25)
                    back |= {pid: (at - started) * 1000 for pid, at in audit.run(STARTED, started)}
                after = [one.children(), two.children()]
                lines = [one.mark() - marks[0], two.mark() - marks[1]]
                until = time.monotonic() + given.long + 30
                while time.monotonic() < until and not audit.run(
                    "SELECT 1 FROM jobherd.history WHERE id = %s", long_job
                ):
                    time.sleep(0.25)
                acknowledged = [*producer.stop(), long_job]
            audit.wait_all_over()
            row = audit.run(
                "SELECT state, attempts, split_part(ran_on, '/', 2)::int FROM jobherd.history WHERE id = %s", long_job
            )
            claims = audit.run(
                "SELECT count(DISTINCT token) FROM audit.steps WHERE job = %s AND step = 'claimed'", long_job
            )[0][0]
            codes = [one.stop(), two.stop()]
            events = [*one.events, *two.events]
        report.fact("server", f"stopped {given.away:g} s, took {took * 1000:.0f} ms to start")
        report.spread(
            "start of the server to a worker's first job",
            [back[pid] for pid in sorted(everyone) if pid in back],
            aims={"max": 5000},
        )
        report.fact("lines logged while it was away, per supervisor with its 3 children", lines_away)
        report.fact("lines logged until all worked again", lines)
        report.holds("every idle worker continued", everyone <= set(back), f"{len(back)} of {len(everyone)}")
        report.holds(
            "the same processes as before", before == after, "" if before == after else f"{before} then {after}"
        )
        report.holds(
            "the long job completed, in its first attempt, in the same process",
            row == [("completed", 1, holder)] and claims == 1,
            f"{row}, {claims} claims",
        )
        report.holds("no traceback in the log", not any("Traceback" in event.line for event in events))
        report.holds(
            "at most 3 lines a process while it was away", max(lines_away) <= 3 * (given.workers + 2), lines_away
        )
        report.holds("both supervisors exited with 0", codes == [0, 0], codes)
        bad = audit.run("SELECT id, state, error FROM jobherd.history WHERE state <> 'completed'")
        report.holds("every job completed", not bad, bad[:5] if bad else "")
        audit.check(report, acknowledged)
        audit.close()
        if report.is_broken:
            print("\n".join(event.line for event in sorted(events, key=lambda each: each.at)), file=sys.stderr)
    return report.end()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except psycopg.OperationalError as problem:
        sys.exit(f"the script itself lost the database: {problem}")
