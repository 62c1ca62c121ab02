"""Everything a network does, drawn from a seed, under two supervisors that reach one server through it: by session, and at named words.

Connections are reset once a second; sessions of a parent or of one child fall silent for good, in the middle of a job, a claim, a settlement;
all of one supervisor is silent for half a lease, a lease, three; answers are lost after the commit; the line is slow, or carries one byte a
packet. Producers go through it too. Nothing is lost, nothing ends twice, nothing is left running, and the same supervisors go on.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.support.audit import Audit
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd
from tests.support.network import Network
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
KINDS = [
    ("fault:quick", {}, 50),
    ("fault:sleep", {"seconds": 0.02}, 30),
    ("fault:sleep", {"seconds": 0.5}, 15),
    ("fault:burn", {"seconds": 0.05}, 5),
]
PARENT, CHILDREN, WORKERS = "jobherd:supervisor:*", "jobherd:*:*:*", "jobherd:worker:*"


def strike(dice: random.Random, network: Network, lease: float) -> str:
    """Do one thing to the network; return what it was."""
    what = dice.choice(["reset", "reset", "silent parent", "silent child", "word", "word", "word", "black hole", "slow", "crumbs"])
    match what:
        case "reset":
            for _ in range(3):
                network.cut()
                time.sleep(1.0)
        case "silent parent":
            network.stall(PARENT)
            time.sleep(dice.uniform(1, 3))
        case "silent child":
            names = [name for name in network.names() if name.startswith(("jobherd:worker:", "jobherd:keeper:"))]
            if names:
                network.stall(dice.choice(names))
            time.sleep(dice.uniform(0.5, 2))
        case "word":
            word, where, action = dice.choice(["claim_", "settle_", "enqueue"]), dice.choice(["before", "torn", "answered"]), "cut"
            if word != "enqueue" and dice.random() < 0.5:
                action = "stall"
            network.arm("*" if word == "enqueue" else WORKERS, word, where=where, action=action)
            time.sleep(dice.uniform(0.2, 1))
            what = f"{action} {where} {word}"
        case "black hole":
            length = dice.choice([0.5, 1.0, 3.0])
            network.blackhole()
            time.sleep(length * lease)
            network.heal()
            what = f"silence of {length:g} leases"
        case "slow":
            network.slow(latency=0.2, bandwidth=10_000)
            time.sleep(3)
            network.heal()
        case "crumbs":
            network.slow(latency=0.001, crumbs=True)
            time.sleep(2)
            network.heal()
    return what


def main() -> int:
    given = arguments(__doc__, faults=60, workers=2, rate=15.0, lease=4.0)
    dice = random.Random(given.seed)
    report = Report(f"network: {given.faults} faults between two supervisors and their server (lease {given.lease:g} s)", given.seed)
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn):
        report.on(dsn)
        audit = Audit(dsn)
        done: Counter[str] = Counter()
        flags = ("--lease", f"{given.lease:g}s", "--db-retry-initial", "0.1s")
        with Network(dsn) as network, Network(dsn) as second:
            through = make_conninfo(network.dsn, application_name="producer")
            with (
                Herd(network.dsn, WORK, *flags, workers=given.workers) as one,
                Herd(second.dsn, WORK, *flags, workers=given.workers) as two,
            ):
                with Producer(through, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS) as producer:
                    for _ in range(given.faults):
                        done[strike(dice, dice.choice([network, network, second]), given.lease)] += 1
                    network.heal()
                    second.heal()
                    acknowledged = producer.stop()
                over = audit.wait_all_over(300)
                lost = len(one.messages("lease was lost")) + len(two.messages("lease was lost"))
                codes = [one.stop(), two.stop()]
                noise = [event.line for event in (*one.events, *two.events) if "Traceback" in event.line]
            hits = network.count("hit") + second.count("hit")
        report.fact("faults", dict(sorted(done.items())))
        report.fact("sessions broken or silenced at a word", hits)
        report.fact("leases lost, as they must be in the longer silences", lost)
        report.holds("every job came to its end", over)
        report.holds("both supervisors lived through it and left with 0", codes == [0, 0], codes)
        report.holds("no traceback in the log", not noise, noise[:2] if noise else "")
        bad = audit.run("SELECT id, state, crashes FROM jobherd.history WHERE state <> 'completed' OR crashes > 0")
        report.holds("every job completed, and no silence was taken for a crash", not bad, bad[:5] if bad else "")
        audit.check(report, acknowledged)
        audit.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
