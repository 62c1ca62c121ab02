"""Run a group whose members add members, under kills: one callback, after the last member has ended.

python -m tests.faults.joins [--jobs 20000] [--kills 100] [--servers 3]

Two supervisors drain the group. A kill is SIGKILL to a random worker or maintenance process, a crash
is SIGKILL to the server's postmaster. At the end each member has ended once, and the callback was
enqueued once, after the last end of a member.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import orjson
import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import Herd

WORK = Path(__file__).with_name("work.py")
HERDS = 2
DEADLINE = 900.0
QUICK = ("--db-retry-initial", "0.2s")
END = """
SELECT f.state, f.pending, f.completed, f.failed, (SELECT count(*) FROM jobherd.jobs j WHERE j.kind = 'fault:callback') AS callbacks,
       (SELECT count(*) FROM jobherd.history h WHERE (h.extras).flow = f.id AND (h.extras).flow > 0) AS members,
       (SELECT count(DISTINCT h.id) FROM jobherd.history h WHERE (h.extras).flow = f.id AND (h.extras).flow > 0) AS different,
       (SELECT max(h.finished_at) FROM jobherd.history h WHERE (h.extras).flow = f.id AND (h.extras).flow > 0) AS last,
       (SELECT min(j.run_at) FROM jobherd.jobs j WHERE j.kind = 'fault:callback' AND j.state <> 'blocked') AS called
  FROM jobherd.flows f WHERE f.id = %s"""


def main() -> int:
    given = arguments(__doc__, jobs=20_000, kills=100, servers=3, workers=2)
    dice = random.Random(given.seed)
    report = Report(
        f"joins: a group of {given.jobs:,}, {given.kills} kills, {given.servers} crashes of the server", given.seed
    )
    with ground() as (cluster, dsn), contextlib.ExitStack() as stack:
        report.on(dsn)
        pause = 0.3 * (given.kills + given.servers) * HERDS * given.workers / given.jobs
        members = [orjson.dumps({"seconds": pause}).decode()] * given.jobs
        nodes = [
            {"node": "member", "kind": "fault:sleep", "payloads": members, "options": {"max_attempts": 1000}},
            {"node": "callback", "kind": "fault:callback", "on": "done", "options": {"queue": "nobody"}},
        ]
        with psycopg.connect(dsn, autocommit=True) as connection:
            (flow,) = connection.execute(
                "SELECT jobherd.start_flow('joins', %s::jsonb, '{\"policy\": \"continue\"}')",
                [orjson.dumps(nodes).decode()],
            ).fetchone()
        herds = [
            stack.enter_context(
                Herd(dsn, WORK, "--queues", "default", "--claim-size", "10", *QUICK, workers=given.workers)
            )
            for _ in range(HERDS)
        ]
        kills = crashes = added = 0
        until = time.monotonic() + DEADLINE
        faults = ["kill"] * given.kills + ["server"] * given.servers
        dice.shuffle(faults)
        while time.monotonic() < until:
            try:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    if connection.execute("SELECT state <> 'open' FROM jobherd.flows WHERE id = %s", [flow]).fetchone()[
                        0
                    ]:
                        break
                    if added < given.kills and faults:  # Like a member that is running.
                        more = [
                            {
                                "node": "member",
                                "kind": "fault:sleep",
                                "item": None,
                                "payload": {"seconds": 0.01},
                                "options": {"max_attempts": 1000},
                            }
                        ]
                        connection.execute(
                            "SELECT jobherd.extend_flow(%s, %s::jsonb)", [flow, orjson.dumps(more).decode()]
                        )
                        added += 1
            except psycopg.OperationalError:
                pass  # The server is starting.
            time.sleep(dice.uniform(0.02, 0.2))
            if not faults:
                continue
            if faults.pop() == "server":
                cluster.kill()
                cluster.start()
                crashes += 1
            elif pids := dice.choice(herds).children():
                try:
                    os.kill(dice.choice(pids), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    faults.append("kill")
            else:  # The child processes are starting.
                faults.append("kill")
        codes = [herd.stop() for herd in herds]
        with psycopg.connect(dsn, autocommit=True) as connection:
            state, pending, completed, failed, callbacks, ended, different, last, called = connection.execute(
                END, [flow]
            ).fetchone()
        wanted = given.jobs + added
        report.fact("faults", f"{kills} kills, {crashes} crashes of the server, {added} members added meanwhile")
        report.holds(
            "the flow has ended, and no member is pending", (state != "open", pending) == (True, 0), (state, pending)
        )
        report.holds("each member has ended once", (ended, different) == (wanted, wanted), (ended, different, wanted))
        report.holds("each end was counted once", completed + failed == wanted, (completed, failed))
        report.holds("the callback ran once", callbacks == 1, callbacks)
        report.holds(
            "the callback started after the last end of a member", called is not None and called >= last, (called, last)
        )
        if called is not None:
            report.fact("delay of the callback", f"{(called - last).total_seconds() * 1000:.0f} ms")
        report.holds("every supervisor exited with 0", codes == [0] * HERDS, codes)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
