"""Run two supervisors behind pgbouncer, one in transaction mode and one in session mode.

The poolers and workers are killed with SIGKILL, and the poolers are started again.

A worker behind a pooler does not own its server session: the supervisor does not end the session when
the worker dies, and the orphan check finds a claim that the server was executing then. Nothing is
lost, nothing ends twice, and every attempt is accounted for. Needs Debian's pgbouncer:
`make pgbouncer`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.support.pooler import Pooler
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [("fault:quick", {}, 50), ("fault:sleep", {"seconds": 0.02}, 40), ("fault:sleep", {"seconds": 0.3}, 10)]


def main() -> int:
    given = arguments(__doc__, faults=40, workers=2, rate=15.0)
    dice = random.Random(given.seed)
    report = Report(f"pooler: {given.faults} kills of pgbouncer and of children behind it, in both modes", given.seed)
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        flags = ("--poll", "1s", "--db-retry-initial", "0.1s")
        killed = {"pooler": 0, "child": 0}
        with Pooler(dsn, "transaction", size=20) as first, Pooler(dsn, "session", size=20) as second:
            poolers = [first, second]
            with (
                Herd(first.dsn, WORK, *flags, workers=given.workers) as one,
                Herd(second.dsn, WORK, *flags, workers=given.workers) as two,
            ):
                with Producer(
                    dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS
                ) as producer:
                    for _ in range(given.faults):
                        time.sleep(dice.uniform(0.2, 2.0))
                        victims = dice.choice([one, two]).worker_pids()
                        if victims and dice.random() < 0.5:
                            killed["child"] += 1
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(dice.choice(victims), signal.SIGKILL)
                        else:
                            killed["pooler"] += 1
                            pooler = dice.choice(poolers)
                            pooler.kill()
                            time.sleep(dice.uniform(0, 2.0))
                            pooler.start()
                    acknowledged = producer.stop()
                over = audit.wait_all_over(300)
                told = [bool(herd.messages("a pooler is between")) for herd in (one, two)]
                codes = [one.stop(), two.stop()]
        report.fact("killed", killed)
        report.holds("every job finished", over)
        report.holds("both supervisors logged that a pooler is between", all(told), told)
        report.holds("both supervisors survived and exited with 0", codes == [0, 0], codes)
        bad = audit.run("SELECT id, state FROM jobherd.history WHERE state <> 'completed'")
        report.holds("every job completed", not bad, bad[:5] if bad else "")
        audit.check(report, acknowledged)
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
