"""A supervisor with a gateway, which serves, waits for a taken port, drains, and is replaced.

No other process loads gRPC.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.checkout import import_path
from tests.support.patience import LIMIT
from tests.support.ports import spare_port
from tests.support.processes import children_of, wait_for_exit
from tests.system.test_hygiene import files, title

if TYPE_CHECKING:
    from tests.support.fleet import Fleet, Stage

READY = "gateway is ready"


def client(what: str, where: str) -> subprocess.Popen[str]:
    """Start a client in a separate process, see tests/workers/gateway/calls.py."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workers.gateway.calls", what, where],
        env=os.environ | {"PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        text=True,
    )


def health(where: str) -> str:
    with client("health", where) as process:
        return process.communicate(timeout=LIMIT)[0].strip()


def gateway(fleet: Fleet) -> int:
    """Return the pid of the latest gateway."""
    return int(fleet.said(READY)[-1]["pid"])


def listeners(port: int) -> set[str]:
    """Return the sockets that listen on a port, as /proc/PID/fd names them."""
    rows = []
    for name in ("tcp", "tcp6"):  # gRPC listens on IPv4 addresses by sockets of IPv6
        with open(f"/proc/net/{name}", encoding="ascii") as file:
            rows += [line.split() for line in file.read().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}


@pytest.mark.promise("D1")
def test_gateway_serves_and_only_its_process_has_grpc_and_the_port(stage: Stage):
    port = spare_port()
    fleet = stage.run_fleet(workers=1, gateway=f"127.0.0.1:{port}")
    fleet.wait_log(READY)
    fleet.wait_log(f"gateway on 127.0.0.1:{port}")
    assert health(f"127.0.0.1:{port}") == "SERVING"
    os.kill(fleet.workers()[0], signal.SIGKILL)
    fleet.wait_ready(2)  # one that was forked while the gateway serves
    (listener,) = listeners(port)
    family = {fleet.pid, *children_of(fleet.pid)}
    assert len(family) == 4, "the supervisor, a worker, the maintenance process and the gateway"
    assert {pid for pid in family if listener in files(pid).values()} == {gateway(fleet)}
    assert {pid for pid in family if loads_grpc(pid)} == {gateway(fleet)}
    assert title(gateway(fleet)) == f"jobherd: gateway serves 127.0.0.1:{port}"
    assert len(os.listdir(f"/proc/{fleet.pid}/task")) == 1, "the supervisor has one thread"
    assert fleet.stop() == 0
    assert not fleet.said("gets SIG"), "the gateway exited without a signal of the stop sequence"


def loads_grpc(pid: int) -> bool:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        maps = file.read()
    return "grpc" in maps or "/google/" in maps


def test_taken_gateway_port_stops_no_job_and_is_served_once_it_is_free(stage: Stage):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        fleet = stage.run_fleet(workers=1, gateway=f"127.0.0.1:{port}")
        fleet.wait_log(READY)
        fleet.wait_log(f"the gateway is off: cannot listen on 127.0.0.1:{port} (Address already in use)")
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    fleet.wait_log(f"gateway on 127.0.0.1:{port}")
    assert len(fleet.said("cannot listen")) == 1
    assert health(f"127.0.0.1:{port}") == "SERVING"
    assert fleet.stop() == 0


def test_drain_notifies_clients_before_it_closes_their_connections(stage: Stage):
    where = f"127.0.0.1:{spare_port()}"
    fleet = stage.run_fleet(workers=1, gateway=where)
    fleet.wait_log(f"gateway on {where}")
    with client("watch", where) as watching:
        assert watching.stdout.readline() == "SERVING\n"
        assert fleet.stop() == 0
        assert watching.stdout.readline() == "NOT_SERVING\n"
        assert watching.stdout.readline() in {"UNAVAILABLE\n", "CANCELLED\n"}
    assert not fleet.said("gets SIG")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_ends_is_replaced_on_the_same_port(stage: Stage, signum: signal.Signals):
    where = f"127.0.0.1:{spare_port()}"
    fleet = stage.run_fleet(workers=1, gateway=where)
    fleet.wait_log(READY)
    fleet.wait_log(f"gateway on {where}")  # a gateway killed between its two lines would never say this one
    first = gateway(fleet)
    os.kill(first, signum)
    fleet.wait_log(READY, count=2)
    assert gateway(fleet) != first
    fleet.wait_log(f"gateway on {where}", count=2)
    assert health(where) == "SERVING"
    assert fleet.stop() == 0


def test_a_gateway_ends_with_its_supervisor(stage: Stage):
    where = f"127.0.0.1:{spare_port()}"
    fleet = stage.run_fleet(workers=1, gateway=where)
    fleet.wait_log(f"gateway on {where}")
    fleet.wait_log(READY)
    pid = gateway(fleet)
    with client("watch", where) as watching:
        assert watching.stdout.readline() == "SERVING\n"
        fleet.signal(signal.SIGKILL)
        wait_for_exit(pid)
    fleet.wait_gone()


def test_until_empty_does_not_wait_for_a_gateway_without_clients(stage: Stage):
    job = stage.enqueue("t:noop")
    fleet = stage.start("--until-empty", workers=1, gateway=f"127.0.0.1:{spare_port()}")
    assert fleet.wait_exit() == 0
    assert stage.wait_state(job, "completed")
