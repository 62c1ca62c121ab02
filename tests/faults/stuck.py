"""Run a handler in an endless C call that blocks every signal and forks a process that does the same.

Both are gone and the job's outcome is recorded within its timeout + 11 s, at the default grace of 5 s.
The other workers are not disturbed. Tested once with the forked process in the worker's process
group, and once after it has moved into its own session.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from pathlib import Path

from tests.support.audit import Audit, read_ids
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, Herd
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
TIMEOUT = 2.0


def main() -> int:
    given = arguments(__doc__, runs=2, workers=3, rate=20.0)
    report = Report(
        f"stuck: an endless C call that blocks every signal, with a grandchild (timeout {TIMEOUT:g} s, grace 5 s)",
        given.seed,
    )
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        settled: list[float] = []
        ended: list[float] = []
        audit = Audit(dsn)
        with Herd(dsn, WORK, workers=given.workers) as herd:
            before = set(herd.worker_pids())
            stuck: list[int] = []
            victims: set[int] = set()
            with Producer(
                dsn,
                Path(folder, "acknowledged"),
                seed=given.seed,
                rate=given.rate,
                kinds=[("fault:sleep", {"seconds": 0.02}, 1)],
            ) as producer:
                for number in range(given.runs):
                    for escape in (False, True):
                        notes = Path(folder, f"pids-{number}-{escape}")
                        notes.touch()
                        (job,) = audit.run(
                            "SELECT jobherd.enqueue('fault:deaf', json_build_object('path', %s::text, 'escape', %s::boolean)::jsonb)",
                            str(notes),
                            escape,
                        )[0]
                        stuck.append(job)
                        until = time.monotonic() + LIMIT
                        while len(read_ids(notes)) < 2 and time.monotonic() < until:
                            time.sleep(0.005)
                        at = time.monotonic()  # A few ms after its start: the measured times are too short by these.
                        pids = read_ids(notes)
                        victims.add(pids[0])
                        for pid in pids:
                            fd = os.pidfd_open(pid)
                            gone = select.select([fd], [], [], LIMIT)[0]
                            os.close(fd)
                            ended.append((time.monotonic() - at) * 1000 if gone else float("inf"))
                        while (
                            not audit.run("SELECT 1 FROM jobherd.history WHERE id = %s", job)
                            and time.monotonic() < at + LIMIT
                        ):
                            time.sleep(0.005)
                        settled.append((time.monotonic() - at) * 1000)
                acknowledged = producer.stop()
            audit.wait_all_over()
            after = set(herd.worker_pids())
            gaps = [
                row[0] * 1000
                for row in audit.run(
                    "SELECT extract(epoch FROM started_at - greatest(run_at, created_at))::double precision FROM jobherd.history WHERE kind = 'fault:sleep'"
                )
            ]
            rows = audit.run("SELECT state, error_code, attempts, error FROM jobherd.history WHERE kind = 'fault:deaf'")
            other_deaths = audit.run("SELECT count(*) FROM jobherd.attempts")[0][0]
            code = herd.stop()
        limit = (TIMEOUT + 11) * 1000
        report.spread("start to both processes gone", ended, aims={"max": limit})
        report.spread("start to the row settled", settled, aims={"max": limit})
        report.spread("waiting of the other jobs meanwhile", gaps)
        report.holds("worker and grandchild are gone each time", all(each < LIMIT * 1000 for each in ended))
        report.holds(
            "each row is settled as a timeout",
            all(row[:3] == ("failed", "JOB_TIMEOUT", 1) for row in rows) and len(rows) == len(stuck),
            rows[0] if rows else "",
        )
        report.holds("the other child processes are the same", before - victims <= after, f"{sorted(before - victims)}")
        report.holds("no other attempt was disturbed", other_deaths == 0, other_deaths or "")
        report.holds("the supervisor exited with 0", code == 0, code)
        audit.check(report, [*acknowledged, *stuck])
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
