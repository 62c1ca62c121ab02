"""Messages that a service manager gets on its socket."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from jobherd.supervisor.observe.systemd import ServiceManager
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate


class Manager:
    """A service manager's socket."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("")  # an abstract name that the kernel chooses
        self.address = "@" + self.socket.getsockname()[1:].decode()
        self.heard: list[str] = []

    def wait(self, start: str, *, after: int = 0, limit: float = LIMIT) -> str:
        """Return the first message that starts with `start`."""
        until = time.monotonic() + limit
        while True:
            for word in self.heard[after:]:
                if word.startswith(start):
                    return word
            assert select.select([self.socket], [], [], max(0.0, until - time.monotonic()))[0], (
                f"no {start} in {limit} s; heard {self.heard}"
            )
            self.heard += self.socket.recv(65536).decode().split("\n")


def test_message_that_does_not_fit_into_the_managers_socket_is_sent_later(monkeypatch):
    """The manager's socket holds a few messages of all senders, and READY is sent once.

    The manager would end a supervisor whose READY is lost.
    """
    manager = Manager()
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    with manager.socket, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as others:
        others.connect("\0" + manager.address[1:])
        with contextlib.suppress(BlockingIOError):
            while others.send(b"STATUS=busy"):
                continue
        ours = ServiceManager()
        ours.tell("READY=1", "MAINPID=7")
        ours.status("one")
        ours.status("two")
        while select.select([manager.socket], [], [], 0)[0]:
            assert manager.socket.recv(65536) == b"STATUS=busy"
        ours.flush()
        manager.wait("STATUS=two")
        assert manager.heard == ["READY=1", "MAINPID=7", "STATUS=two"]
        ours._socket.close()


@pytest.mark.parametrize("interval", ["²", "9" * 5000, "-1", "1e6"])
def test_invalid_watchdog_interval_counts_as_none(monkeypatch, interval):
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    monkeypatch.setenv("WATCHDOG_USEC", interval)
    ours = ServiceManager()
    assert ours.interval == 0
    ours._socket.close()


def test_service_manager_is_notified_of_start_busy_workers_reload_and_stop(stage: Stage, gate: Gate):
    manager = Manager()
    with manager.socket:
        fleet = stage.start(workers=1, environment={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "600000"})
        manager.wait("READY=1")
        assert manager.wait("MAINPID=") == f"MAINPID={fleet.pid}"
        assert fleet.said("is ready"), "a worker is ready before the supervisor is"
        manager.wait("STATUS=serving, 0 of 1 workers busy")
        job = stage.enqueue("t:who", '{"label": "busy"}')
        arrival = gate.wait_arrival("busy")
        manager.wait("STATUS=serving, 1 of 1 workers busy")
        beats = len(manager.heard)
        manager.wait("WATCHDOG=1", after=beats)
        arrival.open()
        assert stage.wait_state(job, "completed")["result"]["notify"] is None, (
            "a worker does not notify the service manager"
        )
        mark = len(manager.heard)
        fleet.signal(signal.SIGHUP)
        manager.wait("RELOADING=1", after=mark)
        assert int(manager.wait("MONOTONIC_USEC=", after=mark).partition("=")[2]) > 0
        manager.wait(
            "READY=1", after=mark
        )  # the socket holds ten messages: the test must read while the supervisor reloads
        fleet.wait_log("every worker runs the new code")
        fleet.signal(signal.SIGTERM)
        manager.wait("STOPPING=1")
        assert fleet.wait_exit() == 0


def test_missing_socket_of_the_service_manager_delays_no_job(stage: Stage):
    fleet = stage.run_fleet(
        workers=1, environment={"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "not a number"}
    )
    job = stage.enqueue("t:noop")
    stage.wait_state(job, "completed")
    assert fleet.stop() == 0
