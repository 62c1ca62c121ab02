"""Tests the process that calls `on_death` hooks: it delivers each death to at most one call and drops none."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from jobherd.workers.ipc.control_block import ControlBlock
from jobherd.workers.ipc.status_board import StatusBoard
from jobherd.workers.maintenance.death_hooks import DeathHooks
from jobherd.workers.process.spec import ChildSettings, ChildSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NO_DATABASE = "host=/nowhere/at/all dbname=jobs"
BLOCKED = 1
HOOKS = """
import atexit
import os

from jobherd import on_death


@on_death
def note(job):
    with open({called!r}, "a") as file:
        file.write(f"{{job.id}}\\n")
    if job.id == {blocked}:
        open({fifo!r}).close()  # until the test opens its other end


@on_death("d:exits")
def leaves(job):
    os._exit(0)


atexit.register(os._exit, 3)
"""


class DeathsBench:
    """`DeathHooks` with the supervisor's end of its socket, and a hook that blocks on a fifo for job BLOCKED."""

    def __init__(self, folder: Path) -> None:
        self._called, self._fifo = folder / "called", str(folder / "fifo")
        self._called.touch()
        os.mkfifo(self._fifo)
        hooks = folder / "mourning.py"
        hooks.write_text(HOOKS.format(called=str(self._called), fifo=self._fifo, blocked=BLOCKED))
        self._reading, self._writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._reading.setblocking(False)
        self._board, self._control = StatusBoard("test"), ControlBlock()
        settings = ChildSettings(dsn=NO_DATABASE, hooks=(str(hooks),), app_dir=folder)
        spec = ChildSpec(
            "maintenance", 0, 1, 1, os.getpid(), -1, -1, self._board, self._control, settings,
            deaths=self._reading.fileno(),
        )  # fmt: skip
        self.deaths = DeathHooks(spec, lambda _job: None)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()
        self._board.close()

    def send(self, *jobs: int, kind: str = "d:dies") -> None:
        for job in jobs:
            death = {
                "job": job, "kind": kind, "attempt": 1, "max_attempts": 1, "crashes": 1, "token": 1,
                "payload": False, "post_mortem": {},
            }  # fmt: skip
            self._writing.send(json.dumps(death).encode())

    def step(self) -> None:
        self.deaths.step(time.monotonic())

    def open_fifo(self) -> None:
        """Wait until the hook blocks, and let it return."""
        os.close(os.open(self._fifo, os.O_WRONLY))

    def finish(self) -> list[int]:
        """Step until no process runs and no death waits, and return the jobs of all calls so far."""
        self.step()
        while self.deaths.wake_at(0.0) != float("inf"):
            wait_ended()
            self.step()
        return [int(line) for line in self._called.read_text().splitlines()]


def wait_ended() -> None:
    """Wait until the process that calls the hooks has ended. It stays to be reaped."""
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def mourning(tmp_path: Path) -> Iterator[DeathsBench]:
    bench = DeathsBench(tmp_path)
    yield bench
    bench.close()


def test_death_that_arrives_during_the_calls_survives_a_failure_after_the_last_hook(mourning: DeathsBench):
    mourning.send(BLOCKED)
    mourning.step()
    mourning.send(2)
    mourning.step()
    mourning.open_fifo()
    assert mourning.finish() == [BLOCKED, 2]


def test_hooks_called_between_the_count_and_the_end_are_not_called_again(
    mourning: DeathsBench, monkeypatch: pytest.MonkeyPatch
):
    mourning.send(BLOCKED, 2, 3)
    mourning.step()
    wait = os.waitpid

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        # `step` has counted no call yet. All of them happen now, before it checks whether the process
        # has ended.
        monkeypatch.setattr(os, "waitpid", wait)
        mourning.open_fifo()
        wait_ended()
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", waitpid)
    assert mourning.finish() == [BLOCKED, 2, 3]


def test_death_whose_hook_exits_is_not_delivered_again(mourning: DeathsBench, caplog: pytest.LogCaptureFixture):
    mourning.send(5, kind="d:exits")
    mourning.send(6)
    assert mourning.finish() == [5, 6]
    assert [record.getMessage() for record in caplog.records if getattr(record, "job", None) == 5] == [
        "the process that calls on_death hooks exited with 0"
    ]
