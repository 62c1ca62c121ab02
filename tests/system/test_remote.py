"""`jobherd.remote` against a real gateway: jobs run in a process that has no connection to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import pytest

from tests.support.checkout import import_path
from tests.support.patience import LIMIT
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Stage


class Outpost:
    """A remote worker, see remote_worker.py."""

    def __init__(self, where: str, file: Path, *options: object) -> None:
        self.file = file
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.remote_worker", where, str(file), *map(str, options)],
            env={name: value for name, value in os.environ.items() if "JOBHERD" not in name}
            | {"PYTHONPATH": import_path()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def done(self) -> list[str]:
        """Return what the worker has done, in order."""
        return self.file.read_text().split() if self.file.exists() else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        out, problems = self.process.communicate(timeout=LIMIT)
        assert (self.process.returncode, out) == (0, "left\n"), problems


@contextmanager
def serving(stage: Stage, **settings: object):
    """Yield the address of a gateway and its supervisor, whose own worker serves another queue."""
    where = f"127.0.0.1:{spare_port()}"
    fleet = stage.run_fleet(workers=1, gateway=where, queues="near", **settings)
    fleet.wait_log(f"gateway on {where}")
    fleet.wait_log("gateway is ready")
    yield where, fleet
    assert fleet.stop() == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "done"


@pytest.mark.promise("D32", "D33")
@pytest.mark.parametrize(("concurrency", "batch"), [(4, 1), (1, 8), (2, 100)])
def test_jobs_run_without_a_connection_to_the_database(stage: Stage, file: Path, concurrency: int, batch: int):
    with serving(stage) as (where, _), Outpost(where, file, concurrency, batch) as outpost:
        jobs = [stage.enqueue("r:add", f'{{"n": {n}}}', queue="far") for n in range(60)]
        stage.wait_all(jobs, "completed")
        assert sorted(map(int, outpost.done())) == list(range(60))
        row = stage.job(jobs[7])
        assert (row["result"], row["attempts"]) == ({"next": 8, "bytes": 0}, 1)
        late = stage.enqueue("r:add", '{"n": 99}', queue="far", payload_bytes=b"12345")
        assert stage.wait_state(late, "completed")["result"] == {"next": 100, "bytes": 5}
        outpost.leave()


def test_each_disposition_of_a_remote_worker_sets_the_state_of_its_job(stage: Stage, file: Path):
    with serving(stage) as (where, _), Outpost(where, file) as outpost:
        kinds = ("r:fail", "r:poison", "r:nack", "r:snooze")
        jobs = {kind: stage.enqueue(kind, queue="far") for kind in kinds}
        last = stage.enqueue("r:add", '{"n": 1}', queue="far")
        stage.wait_state(last, "completed")
        rows = {kind: stage.wait_state(job, "scheduled", "retrying", "failed") for kind, job in jobs.items()}
        assert [rows[kind]["state"] for kind in kinds] == ["retrying", "failed", "retrying", "scheduled"]
        assert [rows[kind]["attempts"] for kind in kinds] == [1, 1, 1, 0]
        (failed,), (nacked,) = (stage.attempts(jobs[kind]) for kind in ("r:fail", "r:nack"))
        assert failed["error"] == "KeyError: 'x'"
        assert 'raise KeyError("x")' in failed["traceback"]
        assert nacked["error"] == "later"
        outpost.leave()


def test_cancel_reaches_the_handler_of_a_remote_worker(stage: Stage, file: Path):
    with serving(stage) as (where, _), Outpost(where, file) as outpost:
        job = stage.enqueue("r:hold", queue="far")
        stage.wait(outpost.done, "the handler to start")
        assert stage.cancel(job) == "cancelling"
        stage.wait_state(job, "cancelled")
        outpost.leave()


@pytest.mark.promise("D17")
def test_killed_gateway_loses_no_job(stage: Stage, file: Path):
    with serving(stage) as (where, fleet), Outpost(where, file, 4, 4) as outpost:
        jobs = []
        for round_ in range(3):
            jobs += [stage.enqueue("r:add", f'{{"n": {100 * round_ + n}}}', queue="far") for n in range(100)]
            stage.wait(lambda: outpost.done(), "some jobs to run")
            os.kill(int(fleet.said("gateway is ready")[-1]["pid"]), signal.SIGKILL)
            fleet.wait_log(f"gateway on {where}", count=round_ + 2)
            fleet.wait_log("gateway is ready", count=round_ + 2)
        stage.wait_all(jobs, "completed")
        assert set(map(int, outpost.done())) == {100 * round_ + n for round_ in range(3) for n in range(100)}
        assert stage.completed_twice() == []
        outpost.leave()


def test_job_of_a_killed_remote_worker_runs_on_another(stage: Stage, file: Path):
    with serving(stage, gateway_linger="100ms") as (where, _):
        with Outpost(where, file) as outpost:
            job = stage.enqueue("r:hold", queue="far")
            stage.wait(outpost.done, "the handler to start")
        with Outpost(where, file.with_name("other")) as other:
            stage.wait(other.done, "the job to run again")
            assert stage.job(job)["attempts"] == 2, "the attempt of the killed worker counts"
            assert stage.cancel(job) == "cancelling"
            stage.wait_state(job, "cancelled")
            other.leave()
