"""Send SIGTERM to a supervisor at random times under load, many times.

Each time it exits with 0, fails no job, leaves no job running, and does not count the attempts of
interrupted jobs. Some supervisors have only 0.2 s to drain, so that jobs are interrupted. Some
receive the signal while they start. Some receive TERM or INT once or twice more. At the end every
acknowledged job has finished once.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 50),
    ("fault:sleep", {"seconds": 0.01}, 25),
    ("fault:burn", {"seconds": 0.03}, 15),
    ("fault:sleep", {"seconds": 0.4}, 7),
    ("fault:burn", {"seconds": 0.8}, 3),
]


def tell_again(herd: Herd, dice: random.Random) -> int:
    """Send TERM or INT up to twice more, each 1 to 800 ms after the last, while the process runs; return how often."""
    told = 0
    for _ in range(dice.choice((0, 0, 1, 2))):
        time.sleep(dice.uniform(0.001, 0.8))
        if herd.process.poll() is None:
            herd.signal(dice.choice((signal.SIGTERM, signal.SIGINT)))
            told += 1
    return told


def main() -> int:
    given = arguments(__doc__, terms=200, workers=2, rate=40.0)
    dice = random.Random(given.seed)
    report = Report(f"terminate: kill -TERM at {given.terms} random moments under load", given.seed)
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        with Herd(dsn, WORK, workers=given.workers):
            pass  # Registers the kinds in the schema.
        audit = Audit(dsn)
        codes: Counter[int] = Counter()
        patient: list[float] = []
        hurried: list[float] = []
        starting: list[float] = []
        repeated: list[float] = []
        again = fast = 0
        left: list[str] = []
        noise: list[str] = []
        with Producer(
            dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS, most=300
        ) as producer:
            for number in range(given.terms):
                short, early = dice.random() < 0.3, dice.random() < 0.15
                flags = ["--drain-timeout", "0.2s"] if short else []
                if dice.random() < 0.3:
                    flags += ["--claim-size", "10"]
                herd = Herd(dsn, WORK, *flags, workers=given.workers, wait=False)
                with herd:
                    herd.wait_event(lambda event: "starts" in event.message)
                    if early:
                        time.sleep(dice.uniform(0, 0.4))
                    else:
                        herd.wait_ready()
                        time.sleep(dice.uniform(0, 1.0))
                    at = herd.signal(signal.SIGTERM)
                    more = tell_again(herd, dice)
                    code = herd.wait()
                    again += more > 0
                    fast += bool(herd.messages("exiting now"))
                    (starting if early else repeated if more else hurried if short else patient).append(
                        (time.monotonic() - at) * 1000
                    )
                    codes[code] += 1
                    rows = audit.run(
                        "SELECT 'running: ' || (SELECT count(*) FROM jobherd.running) || ', children: ' || (SELECT count(*) FROM jobherd.children)"
                        " || ', supervisors: ' || (SELECT count(*) FROM jobherd.supervisors)"
                    )
                    if rows[0][0] != "running: 0, children: 0, supervisors: 0":
                        left.append(f"after {number}: {rows[0][0]}\n{herd.tail()}")
                    noise += [
                        event.line
                        for event in herd.events
                        if event.record.get("level") in ("error", None) or "Traceback" in event.line
                    ]
            acknowledged = producer.stop()
        with Herd(dsn, WORK, "--until-empty", "--ignore-failures", workers=given.workers) as last:
            last_code = last.wait(300)
        outcomes = Counter(dict(audit.run("SELECT outcome, count(*) FROM jobherd.attempts GROUP BY 1")))
        report.fact(
            "exits",
            f"{sum(codes.values())} under {len(acknowledged)} jobs; attempts that did not end their job: {dict(outcomes)}",
        )
        report.spread("TERM to exit, drains to the end", patient)
        report.spread("TERM to exit, 0.2 s to drain", hurried)
        report.spread("TERM to exit, while it starts", starting)
        report.spread("TERM to exit, with a second signal", repeated)
        report.fact("second signals", f"{again} times, of which {fast} counted: 0.5 s or more after the first")
        report.holds("every exit code is 0", set(codes) == {0}, dict(codes))
        report.holds(
            "no running job, no child process and no supervisor is left in the database",
            not left,
            left[:5] if left else "",
        )
        report.holds("no error and no traceback was logged", not noise, noise[:3] if noise else "")
        report.holds("no attempt was counted against a job", set(outcomes) <= {"abandoned"}, dict(outcomes))
        bad = audit.run(
            "SELECT id, state, attempts, crashes FROM jobherd.history WHERE state <> 'completed' OR attempts <> 1 OR crashes <> 0"
        )
        report.holds("every job completed in its first counted attempt", not bad, bad[:5] if bad else "")
        report.holds("the last supervisor drained the rest and exited with 0", last_code == 0, last_code)
        audit.check(report, acknowledged)
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
