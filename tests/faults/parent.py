"""Kill the supervisor with SIGKILL while its workers are busy, many times; then freeze one beyond its lease.

After a kill, no process of the supervisor is left within 2 s, including a job that ignores SIGTERM
and the grandchild process of this job. A new supervisor reclaims the jobs at once. Every second time
the new supervisor starts only after all processes are gone, so that they have to exit without help.

After a freeze, another supervisor claims the jobs once the lease has expired, and the server rejects
the late outcomes of the frozen supervisor's workers.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support.audit import Audit, read_ids
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, Herd, descendants
from tests.support.processes import become_reaper, wait_all_gone
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 50),
    ("fault:sleep", {"seconds": 0.02}, 30),
    ("fault:sleep", {"seconds": 0.1}, 15),  # Short enough to end between two kills.
    ("fault:burn", {"seconds": 0.05}, 5),
]


def kill_parents(report: Report, given, folder: str) -> None:
    dice = random.Random(given.seed)
    notes = Path(folder, "pids")
    notes.touch()
    with ground() as (_, dsn):
        report.on(dsn)
        gone: list[float] = []
        alone: list[float] = []
        taken: list[float] = []
        ready: list[float] = []
        with Herd(dsn, WORK, workers=given.workers):
            pass  # Registers the kinds.
        audit = Audit(dsn)
        (stubborn,) = audit.run(
            "SELECT jobherd.enqueue('fault:stubborn', json_build_object('path', %s::text)::jsonb)", str(notes)
        )[0]
        herd, unmoved = Herd(dsn, WORK, workers=given.workers, wait=False), []
        with Producer(dsn, Path(folder, "acknowledged"), seed=given.seed, rate=20.0, kinds=KINDS, most=100) as producer:
            for number in range(given.kills):
                herd.wait_ready()
                known = len(read_ids(notes))
                until = time.monotonic() + LIMIT
                while len(read_ids(notes)) < 2 * (number + 1) and time.monotonic() < until:
                    time.sleep(0.02)
                time.sleep(dice.uniform(0.05, 0.4))
                family = set(descendants(herd.pid)) | {herd.pid}
                stubborn_ones = set(read_ids(notes)[-2:])
                if not stubborn_ones <= family:
                    unmoved.append((number, known, sorted(stubborn_ones)))
                held = audit.run("SELECT j.id, r.token FROM jobherd.running r, unnest(r.jobs) AS j")
                at = herd.signal(signal.SIGKILL)
                helped = number % 2 == 0
                successor = Herd(dsn, WORK, workers=given.workers, wait=False) if helped else None
                (gone if helped else alone).append((wait_all_gone(family) - at) * 1000)
                herd.process.wait(LIMIT)
                herd.wait()
                if successor is None:
                    at = time.monotonic()
                    successor = Herd(dsn, WORK, workers=given.workers, wait=False)
                offset = time.time() - time.monotonic()
                # The stubborn job was certainly running: once the new supervisor has claimed it, the
                # jobs are reclaimed.
                until = time.monotonic() + LIMIT
                token = dict(held).get(stubborn)
                rows: list[tuple[float]] = []
                while not rows and time.monotonic() < until:
                    time.sleep(0.02)
                    rows = audit.run(
                        "SELECT extract(epoch FROM at)::double precision FROM audit.steps WHERE job = %s AND step = 'claimed' AND token > %s ORDER BY at LIMIT 1",
                        stubborn,
                        token or 0,
                    )
                if rows:
                    successor.wait_ready()
                    taken.append((rows[0][0] - offset - at) * 1000)
                    ready.append((successor.events[0].at - at) * 1000)
                else:
                    unmoved.append((number, "not claimed again", stubborn))
                herd = successor
            acknowledged = producer.stop()
            audit.run("SELECT jobherd.cancel(%s)", stubborn)
        with herd:
            over = audit.wait_all_over()
            code = herd.stop()
        report.fact(
            "kills of the supervisor",
            f"{given.kills}, under {len(acknowledged)} jobs and one that ignores SIGTERM, with its grandchild",
        )
        report.spread("kill to no process left, with a new supervisor at once", gone, aims={"max": 2000})
        report.spread("kill to no process left, without a new supervisor", alone, aims={"max": 2000})
        report.spread("new supervisor's start to the stubborn job claimed", taken)
        report.spread("  of which: the new supervisor's first log line", ready)
        report.holds(
            "all processes were gone each time, and the new supervisor reclaimed their jobs",
            len(gone) + len(alone) == len(taken) == given.kills and not unmoved,
            unmoved[:3] if unmoved else "",
        )
        report.holds("the last supervisor drained and exited with 0", over and code == 0, code)
        crashed = audit.run("SELECT count(*) FROM jobherd.history WHERE crashes > 0")[0][0]
        report.holds("reclaiming counted no crash", not crashed, crashed or "")
        audit.check(report, acknowledged)
        audit.close()


def freeze_parent(report: Report, given) -> None:
    lease = 3.0
    with ground() as (_, dsn):
        flags = ("--lease", f"{lease:g}s")
        audit = Audit(dsn)
        with Herd(dsn, WORK, *flags, workers=2) as frozen:
            jobs = [audit.run("SELECT jobherd.enqueue('fault:sleep', '{\"seconds\": 8}')")[0][0] for _ in range(2)]
            until = time.monotonic() + LIMIT
            while (
                len(held := dict(audit.run("SELECT jobs[1].id, token FROM jobherd.running"))) < 2
                and time.monotonic() < until
            ):
                time.sleep(0.02)
            with Herd(dsn, WORK, *flags, workers=2) as other:
                at = frozen.signal(signal.SIGSTOP)
                offset = time.time() - time.monotonic()
                rows: list[tuple[float, int]] = []
                while len(rows) < 2 and time.monotonic() < at + LIMIT:
                    time.sleep(0.02)
                    rows = audit.run(
                        "SELECT extract(epoch FROM min(at))::double precision, job FROM audit.steps WHERE step = 'claimed' AND token > %s AND job = ANY (%s) GROUP BY job",
                        max(held.values()),
                        jobs,
                    )
                moved = [(when - offset - at) * 1000 for when, _ in rows]
                # The frozen supervisor's workers still run: they finish first, and their outcomes must be rejected.
                time.sleep(max(0.0, 10 - (time.monotonic() - at)))
                frozen.signal(signal.SIGCONT)
                over = audit.wait_all_over()
                time.sleep(2 * lease)  # The continued supervisor notices that its lease is lost and registers again.
                again = audit.run("SELECT jobherd.enqueue('fault:quick') FROM generate_series(1, 20)")
                audit.wait_all_over()
                refused = [event for event in frozen.events if "so their outcome was not written" in event.message]
                lost = frozen.messages("lease was lost")
                codes = [other.stop(), frozen.stop()]
        report.spread(
            f"SIGSTOP to jobs claimed by the other (lease {lease:g} s)", moved, aims={"max": lease * 1000 + 2000}
        )
        report.holds("both jobs moved to the other supervisor", len(moved) == 2, len(moved))
        report.holds(
            "the late completions were rejected and logged",
            len(refused) >= 1,
            f"{len(refused)} lines: {refused[0].message if refused else ''}",
        )
        report.holds("the thawed supervisor noticed it, and serves again", bool(lost) and over, lost[:1])
        report.holds("both exited with 0", codes == [0, 0], codes)
        audit.check(report, [*jobs, *(row[0] for row in again)])
        audit.close()


def main() -> int:
    given = arguments(__doc__, kills=50, workers=3)
    become_reaper()
    report = Report(f"parent: kill -9 of the parent, {given.kills} times; a parent frozen beyond its lease", given.seed)
    with tempfile.TemporaryDirectory() as folder:
        kill_parents(report, given, folder)
    freeze_parent(report, given)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
