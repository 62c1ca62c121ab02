"""A handler leaves a daemon that is in neither the process group nor the session of its worker.

The daemon ends soon after that worker.
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
def test_daemon_ends_when_its_worker_dies(stage: Stage, gate: Gate, way: str):
    # A daemon that names no worker is ended only when every worker is younger.
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
def test_daemon_outlives_its_job_and_ends_when_its_worker_is_replaced(stage: Stage, gate: Gate, way: str):
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
def test_death_of_another_worker_does_not_end_the_daemon(stage: Stage, gate: Gate, way: str):
    fleet = stage.run_fleet(workers=2, handlers=HERE, **QUICK)
    stage.enqueue("daemon:beside", f'{{"way": "{way}", "label": "daemon"}}')
    worker, daemon = gate.wait_arrival("daemon job"), gate.wait_arrival("daemon")
    neighbour = next(pid for pid in fleet.workers().values() if pid != worker.pid)
    os.kill(neighbour, signal.SIGKILL)
    fleet.wait_ready(3)
    assert is_running(daemon.pid), "its job may still use the daemon"
    os.kill(worker.pid, signal.SIGKILL)
    wait_for_exit(daemon.pid)
    assert fleet.stop() == 0


@pytest.mark.parametrize("way", daemons.WAYS)
def test_no_daemon_is_left_when_the_supervisor_has_exited(stage: Stage, gate: Gate, way: str):
    fleet = stage.run_fleet(workers=2, handlers=HERE, **QUICK)
    stage.wait_state(stage.enqueue("daemon:left", f'{{"way": "{way}", "label": "daemon"}}'), "completed")
    daemon = gate.wait_arrival("daemon")
    assert fleet.stop() == 0
    wait_for_exit(daemon.pid)
