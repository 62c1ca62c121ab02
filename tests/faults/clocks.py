"""Make wall clocks jump and drift: those of two hosts, then the server's.

No supervisor's jobs are reclaimed, no job is ended, and no job starts early.

Hosts: the supervisor has one clock and its workers another. One or both jump by a second, a minute,
an hour, a day or ten years, or run twice as fast or stand still for longer than a lease. Meanwhile
delayed jobs and jobs of a second with a timeout of 8 s run. Durations use the monotonic clock, so
these faults must have no effect.

Server: its clock jumps by up to a day at random times, also twice between two renewals. Jobs that
become due by the jump start. The deadlines of leases jump too, but no live supervisor's jobs are
reclaimed. The monotonic clock is always right. `make faketime` installs what the campaign needs.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.faults.campaign import QUICK, Campaign
from tests.support.faketime import Clock
from tests.support.figures import Report
from tests.support.ground import SETTINGS, arguments, fresh
from tests.support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND, MINUTE, HOUR, DAY, YEARS = 1.0, 60.0, 3600.0, 86400.0, 315e6
LEASE = 6.0
TIMELY = ("fault:wait", {"seconds": 1.0}, 3.0, {"timeout": 8})
DELAYED = ("fault:quick", {}, 20.0, {"delay": 1.5})
WORK = [("fault:quick", {}, 40.0), ("fault:wait", {"seconds": 0.05}, 30.0), TIMELY]
STEP = 0.25
"""Seconds between the steps of a clock that drifts."""
SLOWLY = 0.1
"""Share of jumps after which the clock runs twice as fast or stands still, for longer than a lease and any timeout."""
UNWANTED = ("lease was lost", "reclaimed", "timed out", "took longer", "gets SIG", "another claim has it", "was lost")
"""Log messages that appear if a duration, a lease or a deadline depends on such a clock."""


def wander(clocks: list[Clock], dice: random.Random) -> Iterator[float]:
    """Make clocks jump together and sometimes drift by a second each second; yield the wait before the next step."""
    offset = dice.choice((-1, 1)) * dice.choice((SECOND, MINUTE, HOUR, DAY, YEARS))
    for clock in clocks:
        clock.jump(offset)
    yield dice.uniform(0.0, 0.5)
    if dice.random() < SLOWLY:
        pace = dice.choice((-1, 1))
        for step in range(int(1.5 * LEASE / STEP)):
            for clock in clocks:
                clock.jump(offset + pace * STEP * (step + 1))
            yield STEP


def unharmed(field: Campaign, supervisors: list[tuple[int]]) -> None:
    """Check that no lease was lost, no job was ended, and the same supervisors are registered."""
    report, audit = field.report, field.audit
    words = [event.message for herd in field.herds for event in herd.events]
    said = [word for word in words if any(sign in word for sign in UNWANTED)]
    report.holds("no lease was lost, no jobs were reclaimed, and no job was ended", not said, said[:5] or "")
    now = audit.run("SELECT id FROM jobherd.supervisors ORDER BY id")
    report.holds(
        "the same supervisors are registered", now == supervisors, (supervisors, now) if now != supervisors else ""
    )


def hosts(report: Report, jumps: int, seed: int) -> None:
    """Change the clocks of two hosts: those of the supervisors, those of their workers, or both."""
    dice = random.Random(seed)
    with ExitStack() as stack, Cluster(SETTINGS) as cluster, fresh(cluster) as dsn:
        report.on(dsn)
        clocks = [[stack.enter_context(Clock()) for _ in ("parent", "workers")] for _ in range(2)]
        environments = {
            number: parent.environment | {"FAULT_CLOCK": workers.file}
            for number, (parent, workers) in enumerate(clocks)
        }
        words = (*QUICK, "--lease", f"{LEASE:g}s")
        with Campaign(report, dsn, seed=seed, kinds=[*WORK, DELAYED], words=words, env=environments) as field:
            supervisors = field.audit.run("SELECT id FROM jobherd.supervisors ORDER BY id")
            for _ in range(jumps):
                host = dice.choice(clocks)
                for rest in wander(dice.choice((host[:1], host[1:], host)), dice):
                    time.sleep(rest)
            field.work_on()
            unharmed(field, supervisors)
            field.finish()
            early = field.audit.run("SELECT id, run_at, started_at FROM jobherd.history WHERE started_at < run_at")
            report.holds("no job has started early", not early, early[:5] if early else "")
            late = field.audit.run(
                "SELECT max(extract(epoch FROM started_at - run_at))::double precision FROM jobherd.history"
            )[0][0]
            report.fact("the latest start after a job was due, s", f"{late:.2f}")
            bad = field.audit.run(
                "SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed' OR attempts > 1"
            )
            report.holds("every job completed in its first attempt", not bad, bad[:5] if bad else "")


def server(report: Report, jumps: int, seed: int) -> None:
    """Change the clock of the server."""
    dice = random.Random(seed)
    with Clock() as clock, Cluster(SETTINGS, environment=clock.environment) as cluster, fresh(cluster) as dsn:
        words = (*QUICK, "--lease", f"{LEASE:g}s")
        with Campaign(report, dsn, seed=seed, kinds=WORK, words=words) as field:
            supervisors = field.audit.run("SELECT id FROM jobherd.supervisors ORDER BY id")
            waits: list[float] = []
            for number in range(jumps):
                if number % 5 == 0:  # Due in half an hour: the jump of an hour makes it due.
                    clock.jump(0)
                    (job,) = field.audit.run(
                        """SELECT jobherd.enqueue('fault:quick', '{}', '{"delay": "30 minutes"}')"""
                    )[0]
                    clock.jump(HOUR)
                    begun = time.monotonic()
                    # The lambda is called only in this round.
                    field.wait(
                        lambda: field.audit.run("SELECT 1 FROM jobherd.history WHERE id = %s", job), "a job that is due"
                    )  # noqa: B023
                    waits.append((time.monotonic() - begun) * 1000)
                clock.jump(dice.choice((-1, 1)) * dice.choice((SECOND, MINUTE, HOUR, DAY)))
                time.sleep(dice.uniform(0.0, LEASE / 2))
            clock.jump(0)
            field.work_on()
            unharmed(field, supervisors)
            noticed = sum("clock has jumped by" in event.message for herd in field.herds for event in herd.events)
            report.fact("jumps that a supervisor has logged", noticed)
            report.holds("supervisors logged jumps", noticed > 0)
            report.spread("a jump that makes a job due, to its end", waits)
            field.finish()
            bad = field.audit.run(
                "SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed' OR attempts > 1"
            )
            report.holds("every job completed in its first attempt", not bad, bad[:5] if bad else "")


def main() -> int:
    given = arguments(__doc__, jumps=60, server=40)
    report = Report(
        f"clocks: {given.jumps} jumps of two hosts' clocks, {given.server} of the server's (lease {LEASE:g} s)",
        given.seed,
    )
    if given.jumps:
        hosts(report, given.jumps, given.seed)
    if given.server:
        server(report, given.server, given.seed)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
