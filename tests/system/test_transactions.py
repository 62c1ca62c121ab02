"""Workers that die around their job's commit, under a real supervisor.

Committed work is not done again, and uncommitted work leaves no trace.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

WORK = """
import os, signal
from jobherd import Job, handler
from tests.support.gate import at_gate

@handler("m:pay", transactional=True, timeout="60s")
def pay(job: Job, label: str = "") -> str:
    job.connection.execute("INSERT INTO public.effects (job, token) VALUES (%s, %s)", [job.id, job.token])
    receipt.enqueue(of=job.id)
    return at_gate(label) if label else "paid"

@handler("m:receipt")
def receipt(of: int) -> None: ...

@handler("m:dies-after", timeout="60s")
def dies_after(job: Job) -> None:
    with job.transaction() as connection:
        connection.execute("INSERT INTO public.effects (job, token) VALUES (%s, %s)", [job.id, job.token])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.promise("B11", "B43", "B56")
def test_job_takes_effect_once_when_its_worker_dies_before_during_or_after_its_commit(stage: Stage, gate: Gate):
    stage.connection.execute("CREATE TABLE public.effects (job bigint, token bigint)")
    fleet = stage.run_fleet(workers=2, handlers=stage.write("money.py", WORK))
    before = stage.enqueue("m:pay", '{"label": "before"}')
    os.kill(gate.wait_arrival("before").pid, signal.SIGKILL)
    arrival = gate.wait_arrival("before")  # it runs again at once after its first crash
    assert stage.call("SELECT count(*) FROM public.effects") == 0
    arrival.open()
    row = stage.wait_state(before, "completed")
    assert (row["attempts"], row["crashes"]) == (2, 1)
    after = stage.enqueue("m:dies-after")
    row = stage.wait_state(after, "completed")
    fleet.wait_log("SIGKILL", count=2)
    fleet.wait_ready(4)
    # During the commit: a deferred trigger waits for the lock of this test, the worker is killed, and its
    # session is ended before anything else.
    stage.connection.execute(
        "CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$"
    )
    stage.connection.execute(
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hold()"
    )
    stage.connection.execute("SELECT pg_advisory_lock(7)")
    amid = stage.enqueue("m:pay")
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted"
    while stage.connection.execute(waiting).fetchone() is None:
        pass  # no event announces that a session waits for a lock; it takes milliseconds
    fleet.wait_ready(4)
    ran_on = stage.call("SELECT ran_on FROM jobherd.jobs WHERE id = %s", amid)
    os.kill(int(ran_on.rpartition("/")[2]), signal.SIGKILL)
    fleet.wait_log(lambda event: event.get("job") == amid and event["message"].startswith("attempt failed, runs again"))
    stage.connection.execute("SELECT pg_advisory_unlock(7)")
    assert stage.wait_state(amid, "completed")["attempts"] == 2
    effects = stage.connection.execute("SELECT job, count(*) FROM public.effects GROUP BY job").fetchall()
    assert sorted(effects) == sorted([(before, 1), (after, 1), (amid, 1)])
    assert stage.call("SELECT count(*) FROM jobherd.jobs WHERE kind = 'm:receipt'") == 2
    assert stage.completed_twice() == []
    assert stage.runs(after) == 1
