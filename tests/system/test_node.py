"""A remote worker in Node against a real gateway: no code of Jobherd runs in its process, see tests/node/worker.js."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.checkout import ROOT
from tests.support.patience import LIMIT
from tests.support.ports import spare_port
from tests.system.test_remote import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet, Stage

READY = "gateway is ready"
MODULES = ROOT / ".bench" / "node" / "node_modules"
"""`make node-client` installs them."""
PROTOS = ROOT / "handlers" / "_remote" / "proto"

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and (MODULES / "@grpc" / "grpc-js").is_dir()),
    reason="Node and its gRPC client are not installed: `make node-client` needs node and npm",
)


class NodeWorker:
    """A process of tests/node/main.js."""

    def __init__(self, where: str, file: Path, slots: int = 1) -> None:
        self.file = file
        self.process = subprocess.Popen(
            ["node", ROOT / "tests" / "node" / "main.js", where, PROTOS, file, str(slots)],
            env=os.environ | {"NODE_PATH": str(MODULES)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def done(self) -> list[str]:
        """Return the kind and number of each attempt, in order."""
        return self.file.read_text().split() if self.file.exists() else []

    def release(self) -> None:
        """Let the jobs of the kind n:hold end."""
        self.process.send_signal(signal.SIGUSR1)

    def leave(self) -> None:
        self.close()
        self.wait_exit()

    def close(self) -> None:
        """Make the worker take no more tasks."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout.readline() == "leaving\n"

    def wait_exit(self) -> None:
        # Read the rest with the same reader: `communicate` would miss what `readline` has read ahead.
        out, problems = self.process.stdout.read(), self.process.stderr.read()
        assert (self.process.wait(LIMIT), out, problems) == (0, "left\n", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def kill_gateway(fleet: Fleet, signum: signal.Signals) -> None:
    os.kill(int(fleet.said(READY)[-1]["pid"]), signum)


def add(stage: Stage, numbers: range) -> list[int]:
    return [stage.enqueue("n:add", f'{{"n": {n}}}', queue="far") for n in numbers]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "done"


@pytest.mark.parametrize("slots", [1, 16])
def test_node_worker_opens_one_session_and_runs_jobs_in_its_slots(stage: Stage, file: Path, slots: int):
    with serving(stage) as (where, _), NodeWorker(where, file, slots) as node:
        jobs = add(stage, range(60))
        stage.wait_all(jobs, "completed")
        assert sorted(node.done()) == sorted(f"n:add={n}" for n in range(60))
        row = stage.job(jobs[7])
        assert (row["result"], row["attempts"]) == ({"next": 8}, 1)
        assert row["ran_on"].startswith("node-1 via ")
        declared = stage.run("SELECT queue, max_attempts, redact FROM jobherd.kinds WHERE name = 'n:add'")
        assert declared == [("far", 3, ["$.card"])]
        holding = [stage.enqueue("n:hold", queue="far") for _ in range(slots)]
        for job in holding:
            stage.wait_state(job, "running")
        session = "SELECT host, version, principal FROM jobherd.supervisors WHERE via IS NOT NULL"
        assert stage.run(session) == [("node-1", "node-example/1", "local")], "one session for all slots"
        stage.wait(lambda: node.done().count("n:hold=") == slots, "the jobs to start")
        node.release()
        stage.wait_all(holding, "completed")
        node.leave()


def test_each_disposition_of_a_node_worker_sets_the_state_of_its_job(stage: Stage, file: Path):
    port = spare_port()
    with serving(stage, http=f"127.0.0.1:{port}") as (where, _), NodeWorker(where, file) as node:
        kinds = ("n:fail", "n:poison", "n:nack", "n:snooze", "n:abandon")
        jobs = {kind: stage.enqueue(kind, queue="far") for kind in kinds}
        ends = ("scheduled", "retrying", "failed", "completed")
        rows = {kind: stage.wait_state(job, *ends) for kind, job in jobs.items()}
        assert [rows[kind]["state"] for kind in kinds] == ["retrying", "failed", "retrying", "scheduled", "completed"]
        assert [rows[kind]["attempts"] for kind in kinds] == [1, 1, 1, 0, 1], "snooze and abandon do not count"
        assert [rows[kind]["error_code"] for kind in kinds[:3]] == ["UNHANDLED_ERROR", "BAD", "NACK"]
        (failed,), (nacked,) = (stage.attempts(jobs[kind]) for kind in ("n:fail", "n:nack"))
        assert failed["error"] == "no number"
        assert "TypeError: no number" in failed["traceback"]
        assert "main.js" in failed["traceback"]
        assert nacked["error"] == "later"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
            metrics = answer.read().decode().splitlines()
        for kind, outcome in (("n:fail", "retry"), ("n:poison", "poison"), ("n:snooze", "snoozed")):
            assert f'jobherd_worker_jobs_processed_total{{kind="{kind}",outcome="{outcome}"}} 1.0' in metrics
        assert 'jobherd_worker_errors_total{code="BAD",kind="n:poison"} 1.0' in metrics
        assert 'jobherd_gateway_streams{service="work"} 1.0' in metrics
        node.leave()


def test_cancel_reaches_the_handler_of_a_node_worker(stage: Stage, file: Path):
    with serving(stage) as (where, _), NodeWorker(where, file) as node:
        job = stage.enqueue("n:cancel", queue="far")
        stage.wait(node.done, "the handler to start")
        assert stage.cancel(job) == "cancelling"
        stage.wait_state(job, "cancelled")
        node.leave()


def test_node_worker_resumes_its_session_after_the_gateway_is_killed(stage: Stage, file: Path):
    with serving(stage) as (where, fleet), NodeWorker(where, file, 4) as node:
        held = stage.enqueue("n:hold", queue="far")
        stage.wait(node.done, "the handler to start")
        [(session,)] = stage.run("SELECT id FROM jobherd.supervisors WHERE via IS NOT NULL")
        jobs = []
        for round_ in range(3):
            jobs += add(stage, range(100 * round_, 100 * round_ + 100))
            kill_gateway(fleet, signal.SIGKILL)
            fleet.wait_log(f"gateway on {where}", count=round_ + 2)
            fleet.wait_log(READY, count=round_ + 2)  # its pid; the two are logged by two processes
        stage.wait_all(jobs, "completed")
        node.release()
        stage.wait_state(held, "completed")
        assert stage.job(held)["attempts"] == 1, "the job continued while there was no gateway"
        assert node.done().count("n:hold=") == 1
        attached = "SELECT attached > 1 FROM jobherd.supervisors WHERE id = %s"
        assert stage.run(attached, session) == [(True,)]
        assert stage.completed_twice() == []
        node.leave()


def test_drained_gateway_waits_for_its_tasks_and_the_worker_connects_to_the_next_one(stage: Stage, file: Path):
    with serving(stage) as (where, fleet), NodeWorker(where, file, 2) as node:
        held = stage.enqueue("n:hold", queue="far")
        stage.wait(node.done, "the handler to start")
        kill_gateway(fleet, signal.SIGTERM)
        later = add(stage, range(1))
        node.release()
        stage.wait_state(held, "completed")
        stage.wait_all(later, "completed")
        assert stage.job(held)["attempts"] == 1
        node.leave()


def test_node_worker_reports_its_task_before_it_exits(stage: Stage, file: Path):
    with serving(stage) as (where, _), NodeWorker(where, file, 2) as node:
        held = stage.enqueue("n:hold", queue="far")
        stage.wait(node.done, "the handler to start")
        node.close()
        assert stage.job(held)["state"] == "running"
        node.release()
        node.wait_exit()
        assert stage.job(held)["state"] == "completed", "the worker exited after the gateway confirmed the result"
        assert stage.job(held)["attempts"] == 1


def test_node_producer_enqueues_waits_and_cancels(stage: Stage, file: Path):
    with serving(stage) as (where, _), NodeWorker(where, file, 4) as node:
        done = subprocess.run(
            ["node", ROOT / "tests" / "node" / "producer.js", where, PROTOS],
            env=os.environ | {"NODE_PATH": str(MODULES)},
            capture_output=True,
            text=True,
            timeout=2 * LIMIT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        said = json.loads(done.stdout)
        ids = [int(each) for each in said["first"]["ids"]]
        assert (len(ids), said["first"]["already_enqueued"]) == (2, False)
        assert said["again"] == {"ids": said["first"]["ids"], "already_enqueued": True, "existing": []}
        assert (said["refused"], said["missing"]) == ("INVALID_ARGUMENT", "NOT_FOUND")
        assert (said["done"]["state"], said["done"]["result"]) == ("completed", {"next": 2})
        assert said["cancelled"] == {"state": "cancelled"}
        streamed = {int(each["number"]): each for each in said["streamed"]}
        assert sorted(streamed) == [1, 2, 3, 4]
        assert [len(streamed[number]["ids"]) for number in (1, 2, 3, 4)] == [2, 2, 2, 0]
        assert streamed[4]["refused"]
        stage.wait_all(ids + [int(id_) for number in (1, 2, 3) for id_ in streamed[number]["ids"]], "completed")
        assert sorted(node.done()) == sorted(f"n:add={n}" for n in (1, 2, 5, 15, 6, 16, 7, 17))
        node.leave()
