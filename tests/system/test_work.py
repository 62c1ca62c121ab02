"""`jobherd work`: a supervisor on a host without the database's address, with the handlers of the other tests."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import Stage
from tests.support.ports import spare_port
from tests.support.processes import children_of, wait_for_exit
from tests.system.test_gateway import gateway, loads_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fleet import Fleet
    from tests.support.gate import Gate
    from tests.support.lending import Lending

FAR = "far"
"""The queue of the remote host: the local worker serves another one."""


@pytest.fixture(scope="module")
def shared(staged: Lending, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The database and the supervisor with a gateway that the tests share."""
    with staged.database() as dsn, Stage(dsn, tmp_path_factory.mktemp("near"), audit=False) as stage:
        where = f"127.0.0.1:{spare_port()}"
        # On a busy machine the next uplink takes seconds to start: the gateway must not have given up its session by then.
        kept = {"gateway_linger": "300s", "gateway_lease": "300s"}
        fleet = stage.run_fleet(workers=1, gateway=where, queues="near", **kept)
        fleet.wait_log(f"gateway on {where}")
        fleet.wait_log("gateway is ready")
        fleet.where = where
        yield stage
        stage.show()


@pytest.fixture
def stage(shared: Stage, gate: Gate) -> Iterator[Stage]:
    """The shared database. Supervisors that a test starts end with the test, and jobs that it leaves are canceled."""
    del gate  # its address is in the environment of the supervisors
    yield shared
    first, *started = shared.fleets
    shared.show()
    for fleet in started:
        fleet.close()
    shared.fleets[:] = [first]
    shared.run("SELECT jobherd.cancel(id) FROM jobherd.jobs WHERE state IN ('ready', 'scheduled', 'retrying')")


@pytest.fixture
def near(stage: Stage) -> Fleet:
    """The supervisor with the gateway. Its `where` is the address."""
    return stage.fleets[0]


def work(stage: Stage, where: str, **settings: object) -> Fleet:
    """Start the supervisor of a remote host."""
    given = {"workers": 1, "queues": FAR, "worker_id": "outpost", **settings}
    return stage.start(command="work", dsn=None, gateway_addresses=where, **given)


def work_ready(stage: Stage, where: str, **settings: object) -> Fleet:
    """Start the supervisor of a remote host; wait until its workers are ready and it has a gateway."""
    far = work(stage, where, **settings)
    far.wait_ready(int(settings.get("workers", 1)))
    far.wait_log("the gateway is there")
    return far


def uplink(far: Fleet) -> int:
    """Return the pid of the latest uplink."""
    return int(far.said(is_uplink_ready)[-1]["pid"])


def is_uplink_ready(event: dict) -> bool:
    return event.get("message", "") == "uplink is ready"


def enqueue(stage: Stage, kind: str, payload: str = "{}", **options: object) -> int:
    return stage.enqueue(kind, payload, queue=FAR, **options)


def test_jobs_run_in_workers_and_only_the_uplink_loads_grpc(stage: Stage, near: Fleet):
    far = work_ready(stage, near.where, workers=2)
    jobs = [enqueue(stage, "d:completed") for _ in range(20)] + [enqueue(stage, "t:noop") for _ in range(20)]
    stage.wait_all(jobs, "completed")
    row = stage.job(jobs[0])
    assert (row["attempts"], row["crashes"]) == (1, 0)
    assert row["history"][-1]["ran_on"].startswith("outpost via ")
    assert ("outpost",) in stage.run("SELECT host FROM jobherd.supervisors WHERE via IS NOT NULL")
    poison = stage.wait_state(enqueue(stage, "d:poison"), "failed")
    assert poison["attempts"] == 1
    family = {far.pid, *children_of(far.pid)}
    assert len(family) == 4, "the supervisor, two workers and the uplink"
    assert {pid for pid in family if loads_grpc(pid) and pid == uplink(far)} == {uplink(far)}
    for pid in family - {uplink(far)}:
        with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
            assert "grpc" not in file.read()
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
    assert far.stop() == 0
    assert not far.said("gets SIG"), "all child processes exited without a signal of the stop sequence"


HANDLERS = """
from jobherd import DuplicateJob, Job, Unique, handler

@handler("w:leaf", queue="far")
def leaf(n: int) -> int:
    return n

@handler("w:root", queue="far")
def root() -> list:
    return [leaf.enqueue(n) for n in range(3)]

@handler("w:after", queue="far")
def after(job: Job) -> list:
    first = leaf.enqueue(1)
    return [first, leaf.options(after=[first, job.id]).enqueue(2), leaf.options(after=first, when="failed").enqueue(3)]

@handler("w:once", unique=("n",), queue="nowhere")
def once(n: int) -> None: ...

@handler("w:twice", queue="far")
def twice(job: Job) -> list:
    found = [once.enqueue(1), once.enqueue(1), *once.enqueue_many([1, 2])]
    try:
        once.options(unique=Unique(by=("n",), conflict="raise")).enqueue(2)
    except DuplicateJob as problem:
        found.append(problem.id)
    return [[int(one), getattr(one, "new", None)] for one in found]
"""


def test_a_handler_enqueues_through_the_gateway(stage: Stage, near: Fleet):
    far = work_ready(stage, near.where, handlers=stage.write("w.py", HANDLERS))
    row = stage.wait_state(enqueue(stage, "w:root"), "completed")
    stage.wait_all(row["result"], "completed")
    assert [stage.job(job)["result"] for job in row["result"]] == [0, 1, 2]
    assert far.stop() == 0


def test_handler_enqueues_jobs_that_wait_for_others_through_the_gateway(stage: Stage, near: Fleet):
    far = work_ready(stage, near.where, handlers=stage.write("w.py", HANDLERS))
    first, later, never = stage.wait_state(enqueue(stage, "w:after"), "completed")["result"]
    stage.wait_all([first, later], "completed")
    stage.wait_all([never], "cancelled")
    assert stage.job(later)["result"] == 2
    assert stage.job(never)["error_code"] == "UPSTREAM_COMPLETED"
    assert far.stop() == 0


def test_a_handler_enqueues_unique_jobs_through_the_gateway(stage: Stage, near: Fleet):
    far = work_ready(stage, near.where, handlers=stage.write("w.py", HANDLERS))
    row = stage.wait_state(enqueue(stage, "w:twice"), "completed")
    [(one, _), _, _, (two, _), _] = row["result"]
    assert row["result"] == [[one, True], [one, False], [one, False], [two, True], [two, None]]
    assert stage.call("SELECT count(*) FROM jobherd.ready WHERE kind = 'w:once'") == 2
    assert (
        stage.call("SELECT array_agg((extras).parent_id) FROM jobherd.ready WHERE kind = 'w:once'") == [row["id"]] * 2
    )
    assert far.stop() == 0


OPTIONS = """
from jobherd import handler

@handler("w:sized", queue="nowhere", cost=lambda payload: {"memory_mb": payload["size"]})
def sized(size: int) -> None: ...

@handler("w:sizes", queue="far")
def sizes() -> list:
    other = sized.options(cost={"memory_mb": 9}, priority=-5, delay="1h", max_attempts=2, timeout="3s")
    return [sized.enqueue(7), *sized.enqueue_many([1, 2]), other.enqueue(3), sized.options(cost={}).enqueue(4)]
"""


def test_a_handler_enqueues_with_costs_and_other_options_through_the_gateway(stage: Stage, near: Fleet):
    far = work_ready(stage, near.where, handlers=stage.write("w.py", OPTIONS))
    jobs = stage.wait_state(enqueue(stage, "w:sizes"), "completed")["result"]
    costs = dict(stage.run("SELECT job, (cost ->> 'memory_mb')::float FROM jobherd.demands"))
    assert costs == dict(zip(jobs, (7, 1, 2, 9, None), strict=True))
    row = stage.job(jobs[3])
    assert (row["state"], row["priority"], row["max_attempts"], row["timeout"]) == ("scheduled", -5, 2, 3)
    assert far.stop() == 0


PROGRESS = """
from jobherd import Job, handler
from tests.support.gate import at_gate

@handler("w:slow", queue="far", timeout="5m")
def slow(job: Job) -> str:
    job.progress(0.25, "the first quarter", {"pages": 3})
    at_gate("quarter")
    job.progress(0.5)
    return at_gate("half")
"""


def test_progress_of_a_running_job_is_stored(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where, handlers=stage.write("w.py", PROGRESS))
    job = enqueue(stage, "w:slow")
    arrival = gate.wait_arrival("quarter")
    shown = stage.wait(lambda: stage.job(job)["progress"], "its progress")
    assert shown == {"fraction": 0.25, "note": "the first quarter", "data": {"pages": 3}}
    arrival.open()
    arrival = gate.wait_arrival("half")
    stage.wait(lambda: stage.job(job)["progress"] == {"fraction": 0.5}, "its later progress")
    assert stage.state(job) == "running"
    arrival.open("done")
    assert stage.wait_state(job, "completed")["progress"] == {"fraction": 0.5}
    assert far.stop() == 0


def test_a_handler_that_needs_the_database_is_rejected_at_the_start(stage: Stage):
    handlers = stage.write("w.py", HANDLERS.replace('"w:leaf", ', '"w:leaf", transactional=True, '))
    far = work(stage, "127.0.0.1:1", handlers=handlers)
    assert far.wait_exit() == 78
    far.wait_log("kind 'w:leaf' is transactional, which needs a connection to the database")


def test_drain_finishes_the_running_job_and_leaves_waiting_jobs_ready(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    running = enqueue(stage, "t:gate", '{"label": "last"}')
    arrival = gate.wait_arrival("last")
    waiting = enqueue(stage, "t:noop")
    far.signal(signal.SIGTERM)
    far.wait_log("draining: nothing more is claimed")
    arrival.open("ended")
    assert far.wait_exit() == 0
    assert stage.wait_state(running, "completed")["result"] == "ended"
    assert (stage.state(waiting), stage.job(waiting)["attempts"]) == ("ready", 0)
    far.wait_gone()


def test_sigterm_to_every_process_drains_like_sigterm_to_the_supervisor(stage: Stage, near: Fleet, gate: Gate):
    """Service managers send SIGTERM to every process of the service."""
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "last"}')
    arrival = gate.wait_arrival("last")
    for pid in (*children_of(far.pid), far.pid):
        os.kill(pid, signal.SIGTERM)
    far.wait_log("draining: nothing more is claimed, 1 running")
    arrival.open("ended")
    assert far.wait_exit() == 0
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["result"]) == (1, "ended")


def test_second_signal_returns_the_running_job_to_the_queue_without_counting_an_attempt(
    stage: Stage, near: Fleet, gate: Gate
):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "returned"}')
    gate.wait_arrival("returned")
    far.signal(signal.SIGTERM)
    far.wait_log("draining: nothing more is claimed, 1 running")
    stage.run("SELECT pg_sleep(0.6)")  # two signals within 0.5 s count as one
    far.signal(signal.SIGTERM)
    assert far.wait_exit() == 0
    stage.wait_state(job, "ready")
    assert (stage.job(job)["attempts"], stage.job(job)["history"][0]["outcome"]) == (0, "abandoned")


def test_a_cancel_interrupts_the_job_and_the_host_runs_the_next_one(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "unwanted"}')
    gate.wait_arrival("unwanted")
    stage.cancel(job)
    assert stage.wait_state(job, "cancelled")["error_code"] == "JOB_CANCELLED"
    stage.wait_state(enqueue(stage, "t:noop"), "completed")
    assert far.stop() == 0


def test_handler_stuck_in_c_is_killed_by_its_own_supervisor_and_the_row_has_the_cause(
    stage: Stage, near: Fleet, gate: Gate
):
    far = work_ready(stage, near.where, grace="0.3s")
    for seconds in (0.5, 4, 32):  # a busy machine may not have started all three in time
        label = f"stuck-{seconds}"
        job = enqueue(stage, "x:stuck", f'{{"label": "{label}"}}', timeout=seconds)
        started = []
        with suppress(TimeoutError):
            for name in ("", "-grandchild", "-daemon"):
                started.append(gate.wait_arrival(label + name, timeout=seconds + 1))
            break
    with suppress(OSError):
        started[0].open()
    row = stage.wait_state(job, "failed")
    assert row["error_code"] == "JOB_TIMEOUT"
    assert f"its timeout of {seconds} s" in row["error"]
    assert "SIGKILL" in row["error"]
    assert row["crashes"] == 0
    assert row["history"][-1]["ran_on"].startswith("outpost via ")
    for arrival in started:
        wait_for_exit(arrival.pid)
    stage.wait_state(enqueue(stage, "t:noop"), "completed")
    assert far.stop() == 0


def test_killed_worker_costs_its_job_one_attempt_that_records_the_cause(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "killed"}')
    os.kill(gate.wait_arrival("killed").pid, signal.SIGKILL)
    gate.wait_arrival("killed").open("again")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "again")
    assert row["history"][0]["error_code"] == "WORKER_CRASHED"
    assert "died of SIGKILL" in row["history"][0]["error"]
    assert far.stop() == 0


def test_killed_uplink_is_replaced_and_the_running_job_completes(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "kept"}')
    arrival = gate.wait_arrival("kept")
    first = uplink(far)
    os.kill(first, signal.SIGKILL)
    far.wait_log("the gateway is there", count=2)
    assert uplink(far) != first
    arrival.open("kept")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (1, 0, "kept")
    stage.wait_state(enqueue(stage, "t:noop"), "completed")
    assert far.stop() == 0


def test_crash_of_a_worker_that_dies_with_its_uplink_is_counted(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "killed"}')
    for pid in (uplink(far), gate.wait_arrival("killed").pid):
        os.kill(pid, signal.SIGKILL)
    gate.wait_arrival("killed").open("again")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "again")
    assert row["history"][0]["error_code"] == "WORKER_CRASHED"
    assert "died of SIGKILL" in row["history"][0]["error"]
    assert far.stop() == 0


def test_an_outcome_waits_for_the_next_uplink(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "early"}')
    arrival = gate.wait_arrival("early")
    os.kill(uplink(far), signal.SIGKILL)
    arrival.open("early")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["result"]) == (1, "early")
    assert far.stop() == 0


def test_a_killed_gateway_costs_no_attempt(stage: Stage, near: Fleet, gate: Gate):
    far = work_ready(stage, near.where)
    job = enqueue(stage, "t:gate", '{"label": "kept"}')
    arrival = gate.wait_arrival("kept")
    before = len(near.log)
    os.kill(gateway(near), signal.SIGKILL)
    near.wait_log(f"gateway on {near.where}", after=before)
    far.wait_log("the gateway is there", count=2)
    arrival.open("kept")
    row = stage.wait_state(job, "completed")
    assert (row["attempts"], row["crashes"], row["result"]) == (1, 0, "kept")
    assert far.stop() == 0


def test_killed_supervisor_leaves_no_process_and_its_job_runs_on_another_host(stage: Stage, gate: Gate):
    where = f"127.0.0.1:{spare_port()}"
    near = stage.run_fleet(workers=1, gateway=where, queues="near", gateway_linger="0s")
    near.wait_log(f"gateway on {where}")
    far = work_ready(stage, where)
    job = enqueue(stage, "t:gate", '{"label": "moved"}')
    gate.wait_arrival("moved")
    far.signal(signal.SIGKILL)
    far.wait_gone()
    other = work_ready(stage, where, worker_id="other")
    gate.wait_arrival("moved").open("elsewhere")
    row = stage.wait_state(job, "completed")
    assert (row["result"], row["crashes"]) == ("elsewhere", 0)
    assert row["history"][-1]["ran_on"].startswith("other via ")
    assert other.stop() == 0
    assert near.stop() == 0


def test_remote_supervisor_waits_for_a_gateway_and_logs_that_it_has_none(stage: Stage):
    where = f"127.0.0.1:{spare_port()}"
    far = work(stage, where)
    far.wait_ready(1)
    far.wait_log("no gateway: ")
    near = stage.run_fleet(workers=1, gateway=where, queues="near")
    far.wait_log("the gateway is there")
    stage.wait_state(enqueue(stage, "t:noop"), "completed")
    assert far.stop() == 0
    assert near.stop() == 0


def test_remote_supervisor_with_a_wrong_token_exits_and_logs_the_rejection_once(stage: Stage, tmp_path):
    where = f"127.0.0.1:{spare_port()}"
    near = stage.run_fleet(workers=1, gateway=where, queues="near", gateway_token="t" * 20)
    near.wait_log(f"gateway on {where}")
    token = tmp_path / "token"
    token.write_text("wrong" * 4)
    far = work(stage, where, gateway_token_file=token)
    assert far.wait_exit() == 78
    (line,) = far.said("the gateway rejects this host: ")
    assert "rejected the token or certificate" in line["message"]
    assert near.stop() == 0
