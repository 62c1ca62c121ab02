"""A handler leaves a daemon, which belongs to no group and no session of its worker.

It lives as long as that worker, and not much longer.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import is_running, wait_for_exit
from tests.system import daemons

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

HERE = daemons.__file__
QUICK = {"respawn_initial": "10ms", "respawn_max": "100ms"}


@pytest.mark.parametrize("way", daemons.WAYS)
def test_it_ends_with_a_worker_that_dies(stage: Stage, gate: Gate, way: str):
    # Of one that names nobody, no more can be known than that every worker is younger.
    fleet = stage.run_fleet(workers=1 if way == "a_program_without_environment" else 2, handlers=HERE, **QUICK)
    job = stage.enqueue("daemon:beside", f'{{"way": "{way}", "label": "daemon"}}')
    worker, daemon = gate.wait_arrival("daemon job"), gate.wait_arrival("daemon")
    assert os.getsid(daemon.pid) != os.getsid(worker.pid)
    assert os.getpgid(daemon.pid) != os.getpgid(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    assert stage.wait_state(job, "failed")["error_code"] == "WORKER_CRASHED"
    wait_for_exit(daemon.pid)
    fleet.wait_log(f"ended process {daemon.pid}, which a job had left behind")
    assert fleet.stop() == 0


@pytest.mark.parametrize("way", daemons.WAYS)
def test_it_outlives_its_job_and_leaves_with_its_worker(stage: Stage, gate: Gate, way: str):
    fleet = stage.run_fleet(workers=1, handlers=HERE, **QUICK)
    worker = stage.wait_state(stage.enqueue("daemon:left", f'{{"way": "{way}", "label": "daemon"}}'), "completed")[
        "result"
    ]
    daemon = gate.wait_arrival("daemon")
    assert stage.wait_state(stage.enqueue("daemon:who"), "completed")["result"] == worker
    assert is_running(daemon.pid)
    fleet.signal(signal.SIGHUP)
    wait_for_exit(worker)
    wait_for_exit(daemon.pid)
    assert fleet.stop() == 0


@pytest.mark.parametrize("way", daemons.WAYS)
def test_a_neighbours_death_does_not_end_it(stage: Stage, gate: Gate, way: str):
    fleet = stage.run_fleet(workers=2, handlers=HERE, **QUICK)
    stage.enqueue("daemon:beside", f'{{"way": "{way}", "label": "daemon"}}')
    worker, daemon = gate.wait_arrival("daemon job"), gate.wait_arrival("daemon")
    neighbour = next(pid for pid in fleet.workers().values() if pid != worker.pid)
    os.kill(neighbour, signal.SIGKILL)
    fleet.wait_ready(3)
    assert is_running(daemon.pid), "it may be what its job works with"
    os.kill(worker.pid, signal.SIGKILL)
    wait_for_exit(daemon.pid)
    assert fleet.stop() == 0


@pytest.mark.parametrize("way", daemons.WAYS)
def test_none_is_left_when_the_supervisor_has_left(stage: Stage, gate: Gate, way: str):
    fleet = stage.run_fleet(workers=2, handlers=HERE, **QUICK)
    stage.wait_state(stage.enqueue("daemon:left", f'{{"way": "{way}", "label": "daemon"}}'), "completed")
    daemon = gate.wait_arrival("daemon")
    assert fleet.stop() == 0
    wait_for_exit(daemon.pid)
