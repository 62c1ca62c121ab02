"""Many processes die at once.

A handler kills all processes that it can reach, or the kernel kills a whole container that is out of memory.

Jobherd cannot prevent this, since handlers run as the same OS user. Jobherd guarantees what follows: the
remaining processes end, another supervisor reclaims the jobs, and each attempt is explained. A bystander's
job has no crash counted, unless its own process died alone.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.network import Network
from tests.support.processes import kill_at_once

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Arrival, Gate

LEASE = "6s"
KILLERS = """
import os, signal
from jobherd import Job, handler
from tests.support.gate import at_gate

@handler("k:told", timeout="5m")
def told(label: str) -> str:
    word = at_gate(label)
    match word:
        case "kill my parent":
            os.kill(os.getppid(), signal.SIGKILL)
            at_gate(f"{label}, and waits")
        case "kill my group":
            os.killpg(0, signal.SIGKILL)
        case "kill all" | "kill all, and wait":
            os.kill(-1, signal.SIGKILL)
            if word != "kill all":
                at_gate(f"{label}, and waits")
    return word

@handler("k:last", timeout="5m", max_attempts=1)
def last(label: str) -> str:
    return at_gate(label)

@handler("k:pays", timeout="5m", transactional=True)
def pays(job: Job, label: str) -> str:
    job.connection.execute("UPDATE public.balance SET amount = amount + 1")
    return at_gate(label)
"""
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
BELOW_AN_INIT = (*NAMESPACE, "/bin/sh", "-c", '"$@"; exit 0', "sh")


@pytest.fixture
def namespace() -> None:
    """Skip the test unless this machine can create a namespace of process ids, which limits what a handler can kill."""
    try:
        done = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(
            "unshare (util-linux) is not installed, and a handler that kills all processes may only run in a namespace"
        )
    if done.returncode:
        pytest.skip(
            f"no namespace of process ids can be created here, and a handler that kills all processes may only run in one: {done.stderr.decode()}"
        )


def two_jobs(stage: Stage, gate: Gate) -> tuple[dict[str, int], dict[str, Arrival]]:
    """Return a job that is about to kill and a bystander, and their arrivals at the gate."""
    jobs = {label: stage.enqueue("k:told", f'{{"label": "{label}"}}') for label in ("killer", "bystander")}
    return jobs, {label: gate.wait_arrival(label) for label in jobs}


def brought_back(stage: Stage, gate: Gate, jobs: dict[str, int]) -> dict[str, dict[str, object]]:
    """Let each job finish where it runs next; return their rows."""
    for label in jobs:
        gate.wait_arrival(label).open("second time")
    rows = {label: stage.wait_state(job, "completed") for label, job in jobs.items()}
    assert {row["result"] for row in rows.values()} == {"second time"}
    assert stage.completed_twice() == []
    return rows


def test_jobs_run_again_after_a_handler_kills_its_supervisor(stage: Stage, gate: Gate):
    place = stage.write("killers.py", KILLERS)
    doomed = stage.run_fleet(workers=2, handlers=place, lease=LEASE)
    jobs, arrivals = two_jobs(stage, gate)
    other = stage.run_fleet(workers=2, handlers=place, lease=LEASE)
    arrivals["killer"].open("kill my parent")
    assert doomed.wait_exit() == -signal.SIGKILL
    doomed.wait_gone()
    rows = brought_back(stage, gate, jobs)
    for row in rows.values():
        assert row["history"][0]["outcome"] in {"abandoned", "lost"}, (
            "a supervisor's death is not counted as a crash of a job"
        )
        assert row["crashes"] == 0
    assert other.stop() == 0


def test_handler_that_kills_its_process_group_kills_only_its_own_worker(stage: Stage, gate: Gate):
    fleet = stage.run_fleet(workers=2, handlers=stage.write("killers.py", KILLERS))
    jobs, arrivals = two_jobs(stage, gate)
    arrivals["killer"].open("kill my group")
    again = gate.wait_arrival("killer")
    assert again.pid != arrivals["killer"].pid
    again.open("second time")
    row = stage.wait_state(jobs["killer"], "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "second time")
    assert row["history"][0]["post_mortem"]["signal"] == "SIGKILL"
    arrivals["bystander"].open("undisturbed")
    row = stage.wait_state(jobs["bystander"], "completed")
    assert (row["attempts"], row["result"]) == (1, "undisturbed")
    assert fleet.stop() == 0


@pytest.mark.usefixtures("namespace")
def test_another_supervisor_reclaims_jobs_after_a_handler_kills_its_whole_container(stage: Stage, gate: Gate):
    place = stage.write("killers.py", KILLERS)
    doomed = stage.run_fleet(workers=2, handlers=place, lease=LEASE, within=BELOW_AN_INIT)
    jobs, arrivals = two_jobs(stage, gate)
    other = stage.run_fleet(workers=2, handlers=place, lease=LEASE)
    arrivals["killer"].open("kill all, and wait")
    doomed.wait_gone()
    rows = brought_back(stage, gate, jobs)
    assert [row["crashes"] for row in rows.values()] == [0, 0]
    assert (rows["bystander"]["attempts"], rows["bystander"]["history"][0]["outcome"]) == (2, "lost")
    assert rows["killer"]["history"][0]["outcome"] in {"abandoned", "lost"}, (
        "the killer may have lived long enough to find its supervisor dead"
    )
    other.wait_log("jobs were reclaimed")
    assert other.stop() == 0


@pytest.mark.usefixtures("namespace")
def test_supervisor_that_is_pid_1_survives_a_handler_that_kills_every_process(stage: Stage, gate: Gate):
    """The kernel protects pid 1 from processes of its namespace, and `kill(-1)` spares the caller."""
    fleet = stage.run_fleet(workers=2, handlers=stage.write("killers.py", KILLERS), within=NAMESPACE)
    jobs, arrivals = two_jobs(stage, gate)
    arrivals["killer"].open("kill all")
    assert stage.wait_state(jobs["killer"], "completed")["result"] == "kill all"
    gate.wait_arrival("bystander").open("second time")
    row = stage.wait_state(jobs["bystander"], "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "second time")
    assert row["history"][0]["post_mortem"]["signal"] == "SIGKILL"
    fleet.wait_ready(3)
    fleet.wait_log(lambda event: event.get("message", "") == "maintenance is ready", count=2)


def test_next_supervisor_reclaims_jobs_after_all_processes_of_another_are_killed_at_once(stage: Stage, gate: Gate):
    """The kernel does this to a container since Kubernetes 1.28.

    No process is left that could release jobs, explain the deaths, or end processes that handlers started.
    """
    place = stage.write("killers.py", KILLERS)
    doomed = stage.run_fleet(workers=3, handlers=place, lease="600s", poll="300s")
    jobs, _ = two_jobs(stage, gate)
    last = stage.enqueue("k:last", '{"label": "last"}')
    gate.wait_arrival("last")
    waiting = stage.enqueue("k:told", '{"label": "waiting"}')
    kill_at_once(doomed.pid)
    assert doomed.wait_exit() == -signal.SIGKILL
    doomed.wait_gone()
    assert [stage.state(job) for job in (*jobs.values(), last, waiting)] == ["running"] * 3 + ["ready"]

    successor = stage.run_fleet(workers=3, handlers=place, lease="600s", poll="300s")
    rows = brought_back(stage, gate, jobs)
    for row in rows.values():
        assert (row["attempts"], row["crashes"], row["history"][0]["outcome"]) == (2, 0, "lost")
    row = stage.wait_state(last, "failed")
    assert (row["attempts"], row["error_code"]) == (1, "WORKER_LOST")
    gate.wait_arrival("waiting").open("in turn")
    assert stage.wait_state(waiting, "completed")["attempts"] == 1
    assert successor.wait_log("jobs were reclaimed")["message"].startswith("3 jobs were reclaimed from 1 supervisor")
    assert stage.call("SELECT count(*) FROM jobherd.supervisors") == 1
    assert successor.stop() == 0


SESSIONS = """
SELECT application_name, pid, state FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'jobherd:%%' AND pid = ANY (coalesce(%s, ARRAY[pid]))"""


def test_jobs_of_a_vanished_host_are_reclaimed_although_its_sessions_are_still_open(stage: Stage, gate: Gate):
    """The host has lost its power or its network.

    No process is left there, nothing closes its connections, and its transaction still holds its row locks.
    """
    stage.run("CREATE TABLE public.balance AS SELECT 0 AS amount")
    place = stage.write("killers.py", KILLERS)
    with Network(stage.dsn) as network:
        doomed = stage.run_fleet(
            dsn=network.dsn, workers=2, handlers=place, lease=LEASE, claim_size=4, claim_window="0"
        )
        paying = stage.enqueue("k:pays", '{"label": "paying"}')
        first = gate.wait_arrival("paying")
        claimed = stage.run(
            """SELECT jobherd.enqueue('k:told', json_build_object('label', n::text)::jsonb) FROM generate_series(1, 4) AS n"""
        )
        running, *behind = (row[0] for row in claimed)
        second = gate.wait_arrival("1")
        assert {first.pid, second.pid} == set(doomed.workers().values())
        assert stage.states(behind) == ["running"] * 3, "claimed, but not started"
        there = stage.run(SESSIONS, None)
        assert [state for name, _, state in there if name.endswith(":transaction")] == ["idle in transaction"]
        # By the time it is ready, it has checked its own host for dead supervisors: only the lease reveals
        # these.
        other = stage.run_fleet(workers=2, handlers=place, lease=LEASE)
        network.blackhole()
        kill_at_once(doomed.pid)
        doomed.wait_gone()
        assert len(stage.run(SESSIONS, [pid for _, pid, _ in there])) == len(there), (
            "the server has not noticed anything"
        )

        for _ in range(5):
            arrival = gate.wait_arrival()
            assert arrival.pid in other.workers().values()
            arrival.open("in its place")
        for job in (paying, running, *behind):
            row = stage.wait_state(job, "completed")
            assert (row["result"], row["attempts"], row["crashes"]) == ("in its place", 2, 0)
            assert row["history"][0]["outcome"] == "lost"
        assert stage.call("SELECT amount FROM public.balance") == 1
        assert stage.completed_twice() == []
        network.heal()
        stage.wait(lambda: not stage.run(SESSIONS, [pid for _, pid, _ in there]), "the end of its sessions")
        assert other.stop() == 0
        assert stage.count("running") == 0
