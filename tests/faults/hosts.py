"""Run two hosts, each in its own network namespace, and cut one of them off from the database.

No packet passes, and no side is notified. The other host claims the job of the cut-off host when the
lease expires, and no crash is counted. The cut-off host has stopped its exclusive job before that.
Its late statements are rejected, and it registers again once its network is back.

Then a host vanishes: none of its processes runs any more, and its network stays cut. The other host
claims its jobs, and the server closes its sessions without help.

Needs root and a Linux with `ip`: otherwise it prints that it skips the campaign and exits with 0.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import SETTINGS, arguments, fresh
from tests.support.herd import LIMIT, Herd
from tests.support.postgres import Cluster
from tests.support.processes import kill_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

WORK = Path(__file__).with_name("work.py")
NET = "10.213.77"
LET_GO = 25.0
"""Seconds within which the server must close the sessions of a vanished host."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def host(number: int) -> Iterator[str]:
    """Yield the name of a network namespace that reaches the campaign's host as 10.213.77.X."""
    name, ours, theirs = f"jobherd{number}", f"jh{number}a", f"jh{number}b"
    ip("netns", "add", name)
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("addr", "add", f"{NET}.{4 * number + 1}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "addr", "add", f"{NET}.{4 * number + 2}/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)


def claims(audit: Audit, job: int) -> list[tuple[int, float]]:
    return audit.run(
        "SELECT token, extract(epoch FROM min(at))::double precision FROM audit.steps WHERE job = %s AND step = 'claimed' GROUP BY 1 ORDER BY 1",
        job,
    )


def sessions(audit: Audit, number: int) -> int:
    """How many sessions the server has from that host."""
    return int(
        audit.run("SELECT count(*) FROM pg_stat_activity WHERE client_addr = %s", f"{NET}.{4 * number + 2}")[0][0]
    )


def wait(condition, seconds: float = LIMIT):
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def main() -> int:
    given = arguments(__doc__, rounds=3, lease=6.0)
    if os.geteuid() or not shutil.which("ip"):
        print("skipped: needs root and `ip` (iproute2)")
        return 0
    report = Report(
        f"hosts: one of two hosts cut off from the database, {given.rounds} times (lease {given.lease:g} s)", given.seed
    )
    flags = ("--lease", f"{given.lease:g}s", "--db-retry-initial", "0.1s")
    with host(1) as first, host(2) as second, Cluster({**SETTINGS, "listen_addresses": "*"}) as cluster:
        with (cluster.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {NET}.0/24 trust\n")
        cluster.restart()
        moved: list[float] = []
        jobs: list[int] = []
        with fresh(cluster) as dsn:
            report.on(dsn)
            audit = Audit(dsn)
            at = [make_conninfo(dsn, host=f"{NET}.{4 * number + 1}") for number in (1, 2)]
            refused = lost = 0
            for _ in range(given.rounds):
                with Herd(at[0], WORK, *flags, workers=2, netns=first) as cut_off:
                    (job,) = audit.run(
                        "SELECT jobherd.enqueue('fault:sleep', %s)", f'{{"seconds": {3 * given.lease}}}'
                    )[0]
                    (alone,) = audit.run(
                        "SELECT jobherd.enqueue('fault:alone', %s)", f'{{"seconds": {3 * given.lease}}}'
                    )[0]
                    wait(lambda: claims(audit, job) and claims(audit, alone))  # noqa: B023
                    with Herd(at[1], WORK, *flags, workers=2, netns=second) as other:
                        began = time.time()
                        ip("link", "set", "jh1a", "down")
                        mark = cut_off.mark()
                        wait(lambda: len(claims(audit, job)) > 1 and len(claims(audit, alone)) > 1)  # noqa: B023
                        moved += [claims(audit, each)[-1][1] - began for each in (job, alone)]
                        time.sleep(
                            2 * given.lease + 1
                        )  # Its jobs end while it is cut off, so their outcomes cannot be written.
                        ip("link", "set", "jh1a", "up")
                        cut_off.wait_event(lambda event: "registered as supervisor" in event.message, since=mark)
                        lost += len(cut_off.messages("lease was lost"))
                        audit.wait_all_over()
                        jobs += [job, alone]
                        refused += len(cut_off.messages("was not written")) + len(
                            cut_off.messages("is not registered any more")
                        )
                        codes = [other.stop(), cut_off.stop()]
                        report.holds("both exited with 0", codes == [0, 0], codes)
            let_go: list[float] = []
            with Herd(at[1], WORK, *flags, workers=2, netns=second):
                for _ in range(given.rounds):
                    with Herd(at[0], WORK, *flags, workers=2, netns=first) as gone:
                        jobs += [
                            audit.run("SELECT jobherd.enqueue('fault:sleep', '{\"seconds\": 2}')")[0][0]
                            for _ in range(8)
                        ]
                        wait(lambda: any(claims(audit, job) for job in jobs[-8:]))  # noqa: B023
                        ip("link", "set", "jh1a", "down")
                        began = time.monotonic()
                        kill_at_once(gone.pid)
                        report.holds(
                            "the server ended the sessions of a vanished host",
                            wait(lambda: not sessions(audit, 1), 120),
                        )
                        let_go.append((time.monotonic() - began) * 1000)
                        report.holds("the other host ran its jobs", audit.wait_all_over())
                        ip("link", "set", "jh1a", "up")
            report.spread("host vanished to its last session gone", let_go, aims={"max": LET_GO * 1000})
            report.spread(
                "cut to claimed by the other host",
                [each * 1000 for each in moved],
                aims={"max": given.lease * 1000 + 2000},
            )
            report.holds("each job moved once", all(len(claims(audit, job)) == 2 for job in jobs[: 2 * given.rounds]))
            report.holds("the disconnected host noticed each loss of its lease", lost == given.rounds, lost)
            report.fact("late outcomes and children refused", refused)
            crashed = audit.run("SELECT count(*) FROM jobherd.history WHERE crashes > 0 OR state <> 'completed'")[0][0]
            report.holds("no crash was counted, every job completed", not crashed, crashed)
            audit.check(report, jobs)
            audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
